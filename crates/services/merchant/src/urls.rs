//! Public URLs, which follow from the request (merchant chapter 1.2).

use batzen_crypto::HashCode;
use batzen_http::{Head, header};
use batzen_protocol::TalerUri;

/// The instance without a part of its own in URLs.
pub(crate) const DEFAULT: &str = "default";
/// The longest base URL, in bytes.
const BASE_BYTES_MAX: usize = 512;

/// Returns whether an id of at most so many bytes can be a part of URLs. `.` and `..` cannot: browsers, and whoever follows
/// RFC 3986, remove them from a path.
#[must_use]
pub(crate) fn is_id(id: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&id.len())
        && !matches!(id, "." | "..")
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~:@+".contains(&b))
}

/// Returns whether a text is a URL that browsers can open without running it as a program.
#[must_use]
pub(crate) fn is_web_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let is_there = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#']));
    is_there && !url.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// The base URL of an instance, as its customers see it: with a final slash. `None` if the request does not say.
///
/// A proxy names the host, the scheme and a prefix of the path in `X-Forwarded-Host`, `-Proto` and `-Prefix`, or the
/// first two in `Forwarded` (RFC 7239).
#[must_use]
pub(crate) fn base_url(head: &Head, instance: &str) -> Option<String> {
    // Each proxy on the way adds to the list; the first one is next to the client.
    let first = |name: &str| head.header(name).and_then(|list| list.split(',').next()).map(str::trim);
    let host = first("x-forwarded-host").or_else(|| forwarded(head, "host"));
    let host = host.or_else(|| head.header(header::HOST))?;
    // Names in private networks have underscores.
    let is_host = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:[]".contains(&b))
    };
    let scheme = match first("x-forwarded-proto").or_else(|| forwarded(head, "proto")) {
        Some(scheme) if scheme.eq_ignore_ascii_case("https") => "https",
        _ => "http",
    };
    let prefix = first("x-forwarded-prefix").unwrap_or_default().trim_matches('/');
    let is_path = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    if !is_host(host) || !prefix.bytes().all(is_path) {
        return None;
    }
    let mut url = format!("{scheme}://{}/", host.to_ascii_lowercase());
    if !prefix.is_empty() {
        url.push_str(prefix);
        url.push('/');
    }
    if instance != DEFAULT {
        url.push_str(&format!("instances/{instance}/"));
    }
    (url.len() <= BASE_BYTES_MAX).then_some(url)
}

/// Reads what the proxy next to the client says in `Forwarded`.
fn forwarded<'a>(head: &'a Head, name: &str) -> Option<&'a str> {
    let first = head.header("forwarded")?.split(',').next()?;
    let pairs = first.split(';').filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(key, _)| key.trim().eq_ignore_ascii_case(name));
    values.next().map(|(_, value)| value.trim().trim_matches('"'))
}

/// Builds the URI that a wallet opens to pay an order.
#[must_use]
pub(crate) fn pay_uri(base_url: &str, order_id: &str, session_id: &str, claim_token: Option<&str>) -> String {
    let uri = TalerUri::Pay {
        merchant_url: base_url.to_owned(),
        order_id: order_id.to_owned(),
        session_id: session_id.to_owned(),
        claim_token: claim_token.map(str::to_owned),
        nonce_priv: None,
    };
    uri.to_string()
}

/// Builds the URI that a wallet opens to pick up a refund.
#[must_use]
pub(crate) fn refund_uri(base_url: &str, order_id: &str) -> String {
    TalerUri::Refund { merchant_url: base_url.to_owned(), order_id: order_id.to_owned() }.to_string()
}

/// Builds the URI that a wallet opens to pick up a tip.
#[must_use]
pub(crate) fn tip_uri(base_url: &str, tip_id: &HashCode) -> String {
    TalerUri::Tip { merchant_url: base_url.to_owned(), tip_id: tip_id.to_string() }.to_string()
}

/// The page about a tip for its customer.
#[must_use]
pub(crate) fn tip_status_url(base_url: &str, tip_id: &HashCode) -> String {
    format!("{base_url}tips/{tip_id}")
}

/// The page about an order for its customer.
#[must_use]
pub(crate) fn status_url(base_url: &str, order_id: &str, query: &[(&str, Option<&str>)]) -> String {
    let mut url = format!("{base_url}orders/{order_id}");
    let mut joint = '?';
    for (name, value) in query {
        if let Some(value) = value {
            url.push_str(&format!("{joint}{name}={}", batzen_http::client::url_encoded(value)));
            joint = '&';
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use batzen_http::{HeaderName, HeaderValue, Method};

    use super::*;

    fn head(headers: &[(&'static str, &'static str)]) -> Head {
        let mut head = Head::local(Method::GET, "/");
        for (name, value) in headers {
            head.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        head
    }

    #[test]
    fn urls_follow_from_the_request() {
        let direct = head(&[("host", "Shop.example:9966")]);
        assert_eq!(base_url(&direct, DEFAULT).as_deref(), Some("http://shop.example:9966/"));
        let proxied = head(&[
            ("host", "localhost"),
            ("x-forwarded-host", "pay.example"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-prefix", "/shops/"),
        ]);
        let base = base_url(&proxied, "books").unwrap();
        assert_eq!(base, "https://pay.example/shops/instances/books/");
        assert_eq!(
            pay_uri(&base, "42", "", Some("T0")),
            "taler://pay/pay.example/shops/instances/books/42/?c=T0"
        );
        assert_eq!(pay_uri("http://x:1/", "42", "s", None), "taler+http://pay/x:1/42/s");
        assert_eq!(refund_uri(&base, "42"), "taler://refund/pay.example/shops/instances/books/42/");
        assert_eq!(
            status_url(&base, "42", &[("token", None), ("session_id", Some("a b")), ("h", Some("1"))]),
            format!("{base}orders/42?session_id=a%20b&h=1")
        );
        let chained = head(&[
            ("host", "10.0.0.7:9966"),
            ("x-forwarded-host", "pay.example, inner_proxy"),
            ("x-forwarded-proto", "https, http"),
            ("x-forwarded-prefix", "/shops, /"),
        ]);
        assert_eq!(base_url(&chained, DEFAULT).as_deref(), Some("https://pay.example/shops/"));
        let named = head(&[("host", "merchant_backend:9966")]);
        assert_eq!(base_url(&named, DEFAULT).as_deref(), Some("http://merchant_backend:9966/"));
        let standard = head(&[
            ("host", "localhost"),
            ("forwarded", "for=192.0.2.1;Proto=https;host=\"pay.example:8443\", for=10.0.0.1;host=inner"),
        ]);
        assert_eq!(base_url(&standard, DEFAULT).as_deref(), Some("https://pay.example:8443/"));
        assert_eq!(base_url(&head(&[]), DEFAULT), None);
        assert_eq!(base_url(&head(&[("host", "a/b")]), DEFAULT), None);
        assert_eq!(base_url(&head(&[("host", "a"), ("x-forwarded-prefix", "a?b")]), DEFAULT), None);
    }
}
