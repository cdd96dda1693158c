//! Access by bearer tokens, of which a service knows hashes.

use batzen_http::Head;
use subtle::ConstantTimeEq;

/// The holder of a request's bearer token, among holders with the hashes of their tokens. All hashes are compared, in
/// constant time.
pub fn token_holder<T, H: AsRef<[u8]>>(
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
