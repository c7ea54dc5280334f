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
    // Without a branch a digit: a manifest has ten thousands of hashes. What is no digit has a high half.
    let mut all = 0;
    for (byte, pair) in bytes.iter_mut().zip(text.as_chunks::<2>().0) {
        let [high, low] = pair.map(|character| DIGIT[usize::from(character)]);
        all |= high | low;
        *byte = high << 4 | low;
    }
    (all < 16).then_some(bytes)
}

/// What each character stands for; 255 if it is no digit.
const DIGIT: [u8; 256] = {
    let mut table = [255; 256];
    let mut digit = 0;
    while digit < 16 {
        table[DIGITS[digit as usize] as usize] = digit;
        digit += 1;
    }
    table
};

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
