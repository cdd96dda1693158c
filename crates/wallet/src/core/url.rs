//! Base URLs of exchanges and banks in canonical form, so that an exchange has exactly one record.

use super::CoreError;

/// Normalises a base URL. Default scheme `https` (`http` for this machine), host in lower case, default port
/// removed, no query or fragment, exactly one slash at the end.
///
/// # Errors
/// [`CoreError::BadUrl`] for other schemes, user names, empty hosts, or invalid characters.
pub fn normalise_base_url(text: &str) -> Result<String, CoreError> {
    let bad = |reason: &str| CoreError::BadUrl { url: text.to_owned(), reason: reason.to_owned() };
    let trimmed = text.trim();
    let (scheme, rest) = trimmed.split_once("://").unwrap_or_else(|| {
        let local = ["localhost", "127.", "[::1]"].iter().any(|host| trimmed.starts_with(host));
        (if local { "http" } else { "https" }, trimmed)
    });
    let scheme = scheme.to_ascii_lowercase();
    if scheme != "https" && scheme != "http" {
        return Err(bad("it must begin with https:// or http://"));
    }
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return Err(bad("it must not contain a user name"));
    }
    let authority = authority.to_ascii_lowercase();
    let default_port = if scheme == "https" { ":443" } else { ":80" };
    let authority = authority.strip_suffix(default_port).unwrap_or(&authority);
    if authority.is_empty() || authority.starts_with(':') {
        return Err(bad("the host is missing"));
    }
    if !trimmed
        .bytes()
        .all(|c| c.is_ascii_graphic() && !matches!(c, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`'))
    {
        return Err(bad("it has characters that a URL cannot have"));
    }
    if let Some((host, port)) = authority.rsplit_once(':')
        && !authority.ends_with(']')
        && (host.is_empty() || port.parse::<u16>().is_err())
    {
        return Err(bad("the port is not a number up to 65535"));
    }
    let mut url = format!("{scheme}://{authority}/");
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        if segment == "." || segment == ".." {
            return Err(bad("the path must not contain . or .."));
        }
        url.push_str(segment);
        url.push('/');
    }
    Ok(url)
}

/// The part of a URL that names the server: scheme, host and port.
#[must_use]
pub(crate) fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at + 1);
    &url[..end]
}

/// Returns whether two libtool versions (`current:revision:age`) are compatible: their ranges `current - age
/// ..= current` overlap. A malformed version is compatible with nothing.
#[must_use]
pub(crate) fn versions_compatible(ours: &str, theirs: &str) -> bool {
    fn range(text: &str) -> Option<(u32, u32)> {
        let mut parts = text.split(':').map(|part| part.parse::<u32>().ok());
        let (current, _revision, age) = (parts.next()??, parts.next()??, parts.next()??);
        if parts.next().is_some() {
            return None;
        }
        Some((current.checked_sub(age)?, current))
    }
    match (range(ours), range(theirs)) {
        (Some((our_low, our_high)), Some((low, high))) => our_low <= high && low <= our_high,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_are_normalised() {
        for (given, wanted) in [
            ("exchange.test", "https://exchange.test/"),
            ("localhost:8081", "http://localhost:8081/"),
            ("https://Exchange.Test:443", "https://exchange.test/"),
            ("http://127.0.0.1:8081/", "http://127.0.0.1:8081/"),
            ("HTTP://a.test:80//x//Y/?q=1#f", "http://a.test/x/Y/"),
            ("http://[::1]:8081", "http://[::1]:8081/"),
            ("http://[::1]", "http://[::1]/"),
        ] {
            assert_eq!(normalise_base_url(given).expect(given), wanted, "{given}");
            assert_eq!(normalise_base_url(wanted).expect(wanted), wanted);
        }
        for bad in [
            "",
            "ftp://x/",
            "https://",
            "https://:80/",
            "https://me@x/",
            "http://x:99999/",
            "http://x/a b",
            "http://x/../y",
        ] {
            assert!(normalise_base_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn versions_overlap() {
        assert!(versions_compatible("14:0:2", "14:0:2"));
        assert!(versions_compatible("14:0:2", "12:0:0"));
        assert!(versions_compatible("14:0:2", "16:1:3"));
        assert!(!versions_compatible("14:0:2", "11:0:0"));
        assert!(!versions_compatible("14:0:2", "17:0:2"));
        assert!(!versions_compatible("14:0:2", "14:0"));
        assert!(!versions_compatible("14:0:2", "1:0:2"));
        assert!(!versions_compatible("14:0:2", "14:0:2:1"));
    }
}
