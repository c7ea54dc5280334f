//! Links and URIs as messages may show them.
//!
//! Owns what is left out; whoever puts a link or URI of foreign origin into a message asks here.
//! Invariant: no user, password or query of a URL passes.

use std::borrow::Cow;

/// Longest part of a link that a message repeats: enough to find it, too short to flood a report.
const SHOWN_CHARS_MAX: usize = 200;

/// `text` without what may be secret in a URL: user, password and query.
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Cow::Borrowed(text);
    };
    let authority_end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    // A password can hold a slash; an `@` in a plain path is part of a name.
    if authority.contains('@') || authority.contains(':') && rest.contains('@') {
        return Cow::Owned(format!("{scheme}://***"));
    }
    // A query can also follow the authority.
    let host_end = authority.find('?').unwrap_or(authority.len());
    if query.is_empty() && host_end == authority.len() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!(
        "{scheme}://{}{}?***",
        &authority[..host_end],
        if host_end == authority.len() {
            path
        } else {
            ""
        }
    ))
}

/// A link as messages show it: without secrets, control characters, and not longer than a line or two.
pub(crate) fn shown(raw: &str) -> String {
    let shown = redact(raw);
    let cut: String = shown.chars().take(SHOWN_CHARS_MAX).collect();
    let mut out = printable(&cut);
    if shown.chars().nth(SHOWN_CHARS_MAX).is_some() {
        out.push_str("...");
    }
    out
}

/// `text` without control characters: a terminal would obey them.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_hold_no_secrets() {
        for (text, want) in [
            ("https://h/x?X-Amz-Signature=cafe", "https://h/x?***"),
            ("https://u:p@h/x", "https://***"),
            ("https://u:p/q@h/x", "https://***"),
            ("https://h?token=cafe", "https://h?***"),
            ("https://h?a=/b", "https://h?***"),
            ("s3://b/plain@2x.jpg", "s3://b/plain@2x.jpg"),
            ("a?b=c.jpg", "a?b=c.jpg"),
        ] {
            assert_eq!(redact(text), want);
        }
    }

    #[test]
    fn long_and_odd_links_are_tamed() {
        let raw = format!("a\u{1b}{}", "b".repeat(1000));
        let shown = shown(&raw);
        assert!(shown.starts_with("a\u{fffd}b") && shown.ends_with("..."));
        assert_eq!(shown.chars().count(), SHOWN_CHARS_MAX + 3);
    }
}
