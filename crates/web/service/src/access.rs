//! Access by bearer tokens, of which a service knows hashes.

use batzen_http::Head;
use subtle::ConstantTimeEq;

use crate::guesses::{Guesses, TooMany};

/// The beginning of access tokens by RFC 8959.
pub const TOKEN_PREFIX: &str = "secret-token:";

/// The fewest characters of an access token, after its prefix.
const TOKEN_CHARS_MIN: usize = 8;
/// The fewest different ones among them.
const TOKEN_KINDS_MIN: usize = 4;
/// Parts of tokens in examples.
const PLACEHOLDERS: [&str; 2] = ["replace-me", "change-me"];

/// The weakness of a new access token that can be guessed, for messages.
#[must_use]
pub fn weak_token(token: &str) -> Option<&'static str> {
    let secret = token.strip_prefix(TOKEN_PREFIX).unwrap_or(token);
    let kinds: std::collections::BTreeSet<char> = secret.chars().collect();
    let is_weak = secret.chars().count() < TOKEN_CHARS_MIN
        || kinds.len() < TOKEN_KINDS_MIN
        || PLACEHOLDERS.iter().any(|part| secret.contains(part));
    is_weak.then_some(
        "this token can be guessed: it needs 8 characters or more, and is no example; \
         `echo secret-token:$(openssl rand -hex 16)` makes one",
    )
}

/// The cause of a refused access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no token, or a wrong one.
    Wrong,
    /// Its client, or others, have shown too many wrong ones.
    TooMany(TooMany),
}

/// The holder of a request's bearer token, within a limit on guesses. `account` is what all
/// these holders have in common.
///
/// # Errors
/// [`Denied`].
pub fn require_holder<T, H: AsRef<[u8]>>(
    guesses: &Guesses,
    account: &str,
    head: &Head,
    hash: impl FnOnce(&str) -> H,
    known: impl IntoIterator<Item = (T, H)>,
) -> Result<T, Denied> {
    if head.bearer_token().is_none() {
        return Err(Denied::Wrong);
    }
    let attempt = guesses.begin(head, account).map_err(Denied::TooMany)?;
    let holder = token_holder(head, hash, known).ok_or(Denied::Wrong)?;
    attempt.succeeded();
    Ok(holder)
}

/// The holder of a request's bearer token, among holders with the hashes of their tokens. All hashes are compared, in
/// constant time.
fn token_holder<T, H: AsRef<[u8]>>(
    head: &Head,
    hash: impl FnOnce(&str) -> H,
    known: impl IntoIterator<Item = (T, H)>,
) -> Option<T> {
    let given = hash(head.bearer_token()?);
    let mut found = None;
    for (holder, expected) in known {
        if bool::from(expected.as_ref().ct_eq(given.as_ref())) {
            found = Some(holder);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use batzen_http::{HeaderValue, Method, header};

    use super::*;

    #[test]
    fn tokens_that_can_be_guessed_are_weak() {
        for token in [
            "",
            "x",
            "secret-token:",
            "secret-token:sandbox",
            "secret-token:aaaaaaaabb",
            "secret-token:replace-me-1",
        ] {
            assert!(weak_token(token).is_some(), "{token}");
        }
        assert_eq!(weak_token("secret-token:sandbox-demo"), None);
        assert_eq!(weak_token("secret-token:8c1f09"), weak_token("x"));
    }

    #[test]
    fn guesses_are_limited_and_hurt_nobody_elsewhere() {
        let guesses = Guesses::default();
        let ask = |last: u8, token: &str| {
            let mut head = Head::local(Method::GET, "/");
            head.client = Some([192, 0, 2, last].into());
            let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            head.headers.insert(header::AUTHORIZATION, value);
            let known = [("alice", b"right".to_vec())];
            require_holder(&guesses, "shop", &head, |token| token.as_bytes().to_vec(), known)
        };
        let tried = (0..45_000).filter(|n| ask(1, &n.to_string()) == Err(Denied::Wrong)).count();
        assert_eq!(tried, 10);
        assert!(matches!(ask(1, "right"), Err(Denied::TooMany(_))), "a right guess would tell");
        assert_eq!(ask(2, "right"), Ok("alice"));
        let anonymous = Head::local(Method::GET, "/");
        for _ in 0..100 {
            let found = require_holder(&guesses, "shop", &anonymous, |_| [0; 1], [((), [1; 1])]);
            assert_eq!(found, Err(Denied::Wrong), "a request without a token is no guess");
        }
    }

    #[test]
    fn a_token_has_one_holder() {
        let found = |authorization: Option<&str>| {
            let mut head = Head::local(Method::GET, "/");
            if let Some(text) = authorization {
                head.headers.insert(header::AUTHORIZATION, HeaderValue::from_str(text).unwrap());
            }
            let known = [("alice", b"a".to_vec()), ("bob", b"b".to_vec())];
            token_holder(&head, |token| token.as_bytes().to_vec(), known)
        };
        assert_eq!(found(Some("Bearer b")), Some("bob"));
        assert_eq!(found(Some("bearer a")), Some("alice"));
        for other in [None, Some("Bearer c"), Some("Bearer ab"), Some("Basic a")] {
            assert_eq!(found(other), None, "{other:?}");
        }
    }
}
