//! Heads of HTTP requests and answers, as text.

use std::io;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// Longest head of a request or an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Reads up to the empty line; what came after it stays in `rest`.
pub(super) async fn read_head(
    stream: &mut TcpStream,
    rest: &mut Vec<u8>,
) -> io::Result<Option<String>> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        if let Some(end) = rest.windows(4).position(|at| at == b"\r\n\r\n") {
            let tail = rest.split_off(end + 4);
            let head = std::mem::replace(rest, tail);
            return String::from_utf8(head).map(Some).map_err(io::Error::other);
        }
        if rest.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("head too long"));
        }
        match stream.read(&mut buffer).await? {
            0 => return Ok(None),
            n => rest.extend_from_slice(&buffer[..n]),
        }
    }
}

pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

pub(super) fn without_header(head: &str, name: &str) -> String {
    let keep = |line: &&str| {
        !line
            .split_once(':')
            .is_some_and(|(found, _)| found.eq_ignore_ascii_case(name))
    };
    head.split_inclusive("\r\n").filter(keep).collect()
}

pub(super) fn with_header(head: &str, name: &str, value: &str) -> String {
    let head = without_header(head, name);
    let head = head.strip_suffix("\r\n").unwrap_or(&head);
    format!("{head}{name}: {value}\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_replaced() {
        let head = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nX: y\r\n\r\n";
        let other = with_header(head, "etag", "b");
        assert_eq!(other, "HTTP/1.1 200 OK\r\nX: y\r\netag: b\r\n\r\n");
        assert_eq!(header(&other, "ETAG"), Some("b"));
    }
}
