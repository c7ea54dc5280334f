//! Lower-case hexadecimal, the form in which hashes and keys stand in JSON and in file names.
//!
//! Invariant: a text decodes in one way only; upper case and odd lengths are refused.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// `bytes` as lower-case hex, appended to `text`.
pub(crate) fn push(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// `bytes` as lower-case hex.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    push(&mut text, bytes);
    text
}

/// The `N` bytes that `text` stands for, if it is exactly `2 * N` lower-case digits.
pub(crate) fn decode<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    // Without a branch or a table, so that digits are decoded side by side: a manifest has ten thousands of hashes.
    let mut wrong = false;
    for (byte, pair) in bytes.iter_mut().zip(text.as_chunks::<2>().0) {
        let [high, low] = pair.map(|character| {
            let digit = character.wrapping_sub(b'0');
            let letter = character.wrapping_sub(b'a');
            wrong |= (digit > 9) & (letter > 5);
            if digit > 9 {
                letter.wrapping_add(10)
            } else {
                digit
            }
        });
        *byte = high << 4 | low;
    }
    (!wrong).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_nothing_but_lower_case_digits() {
        let bytes: [u8; 256] = std::array::from_fn(|at| at as u8);
        assert_eq!(decode(encode(&bytes).as_bytes()), Some(bytes));
        for character in 0..=255u8 {
            let digit = char::from(character).to_digit(16);
            let digit = digit.filter(|_| !character.is_ascii_uppercase());
            let expected = digit.map(|digit| digit as u8);
            assert_eq!(decode(&[b'0', character]), expected.map(|low| [low]));
            assert_eq!(decode(&[character, b'0']), expected.map(|high| [high << 4]));
        }
        assert_eq!(decode::<1>(b"abc"), None);
        assert_eq!(decode::<2>(b"ab"), None);
    }
}
