//! `payto://` URIs (RFC 8905), which identify bank accounts and reserves.
//!
//! A URI is kept exactly as written, since its hash names the account in the protocol: another spelling has another
//! hash. What must count an account once however it is spelled, such as a limit, uses its [`AccountHash`].

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash, WireSalt};

use batzen_crypto::hash::shorten;
use batzen_crypto::kdf::kdf_array;

use crate::hash_text;
use crate::limits::{OverLimit, PAYTO_BYTES_MAX, check_text};
use crate::text::text_form;

/// Longest IBAN, in characters (ISO 13616).
const MAX_IBAN_LEN: usize = 34;

/// Countries that issue IBANs (ISO 13616 registry).
const IBAN_COUNTRIES: &[u8] =
    b"ADAEALATAZBABEBGBHBIBRBYCHCRCYCZDEDJDKDOEEEGESFIFKFOFRGBGEGIGLGRGTHRHUIEILIQISITJOKWKZLB\
    LCLILTLULVLYMCMDMEMKMNMRMTMUNINLNOOMPKPLPSPTQARORSRUSASCSDSESISKSMSOSTSVTLTNTRUAVAVGXKYE";

/// Why a text is not an acceptable payto URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PaytoError {
    /// Longer than the longest URI that can be transferred to.
    #[error(transparent)]
    TooLong(#[from] OverLimit),
    /// Does not begin with `payto://`.
    #[error("URI does not begin with payto://")]
    Prefix,
    /// A character that is not allowed, or an incomplete percent escape.
    #[error("URI has a character that is not allowed")]
    Character,
    /// No method, or no slash after it.
    #[error("URI has no path after its method")]
    NoPath,
    /// The IBAN is too long or too short or has wrong characters.
    #[error("malformed IBAN")]
    Iban,
    /// The IBAN begins with an unknown country code.
    #[error("IBAN of an unknown country")]
    IbanCountry,
    /// The check digits of the IBAN are wrong.
    #[error("wrong check digits in IBAN")]
    IbanChecksum,
    /// An `iban` URI needs a `receiver-name`.
    #[error("missing receiver-name")]
    ReceiverName,
    /// Not the URI of a reserve, or its key is malformed.
    #[error("not the URI of a reserve")]
    Reserve,
    /// The exchange's base URL is not `http://…/` or `https://…/`.
    #[error("malformed base URL")]
    BaseUrl,
}

/// The set of allowed characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charset {
    Strict,
    Escapes,
}

/// A valid payto URI, exactly as written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PaytoUri(String);

impl PaytoUri {
    /// Checks a URI in the form that endpoints accept: letters, digits, `/ : & ? - . , = +`, and `%` with two
    /// hexadecimal digits.
    ///
    /// # Errors
    /// [`PaytoError`].
    pub fn parse(text: impl Into<String>) -> Result<Self, PaytoError> {
        let text = text.into();
        validate(&text, Charset::Escapes)?;
        Ok(Self(text))
    }

    /// Checks a URI in the strict form, without percent escapes.
    ///
    /// # Errors
    /// [`PaytoError`].
    pub fn parse_strict(text: impl Into<String>) -> Result<Self, PaytoError> {
        let text = text.into();
        validate(&text, Charset::Strict)?;
        Ok(Self(text))
    }

    /// The URI of an account at a bank of the `x-taler-bank` method.
    ///
    /// # Errors
    /// [`PaytoError::Character`] if `host` or `account` is empty or contains characters that are not allowed
    /// there.
    pub fn x_taler_bank(host: &str, account: &str, receiver_name: Option<&str>) -> Result<Self, PaytoError> {
        let plain = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:,+".contains(&b))
        };
        if !plain(host) || !plain(account) {
            return Err(PaytoError::Character);
        }
        let mut uri = format!("payto://x-taler-bank/{host}/{account}");
        if let Some(name) = receiver_name {
            uri.push_str("?receiver-name=");
            for &byte in name.as_bytes() {
                if byte.is_ascii_alphanumeric() || b"-.,".contains(&byte) {
                    uri.push(byte as char);
                } else {
                    uri.push_str(&format!("%{byte:02X}"));
                }
            }
        }
        Self::parse(uri)
    }

    /// The URI of a reserve, by which it receives purses: base URL `https://HOST/PATH/` becomes
    /// `payto://taler-reserve/HOST/PATH/KEY`, and `http://` becomes `payto://taler-reserve-http/…`.
    ///
    /// # Errors
    /// [`PaytoError::BaseUrl`] unless the base URL is http or https and ends with a slash, else as
    /// [`PaytoUri::parse`].
    pub fn reserve(exchange_base_url: &str, reserve_pub: &EddsaPublicKey) -> Result<Self, PaytoError> {
        let (method, rest) = if let Some(rest) = exchange_base_url.strip_prefix("https://") {
            ("taler-reserve", rest)
        } else if let Some(rest) = exchange_base_url.strip_prefix("http://") {
            ("taler-reserve-http", rest)
        } else {
            return Err(PaytoError::BaseUrl);
        };
        if !rest.ends_with('/') || rest.starts_with('/') {
            return Err(PaytoError::BaseUrl);
        }
        // Not checked against the charset: a base URL may have a tilde, and both sides build the same text.
        Ok(Self(format!("payto://{method}/{rest}{reserve_pub}")))
    }

    /// The base URL of the exchange and the key, if this is the URI of a reserve.
    ///
    /// # Errors
    /// [`PaytoError::Reserve`] for another method or a malformed key.
    pub fn to_reserve(&self) -> Result<(String, EddsaPublicKey), PaytoError> {
        let scheme = match self.method().to_ascii_lowercase().as_str() {
            "taler-reserve" => "https",
            "taler-reserve-http" => "http",
            _ => return Err(PaytoError::Reserve),
        };
        let (base, key) = self.path().rsplit_once('/').ok_or(PaytoError::Reserve)?;
        if base.is_empty() {
            return Err(PaytoError::Reserve);
        }
        let key = key.parse().map_err(|_| PaytoError::Reserve)?;
        Ok((format!("{scheme}://{base}/"), key))
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text as written.
    pub fn into_string(self) -> String {
        self.0
    }

    fn after_scheme(&self) -> &str {
        &self.0["payto://".len()..]
    }

    /// The wire method, e.g. `iban` or `x-taler-bank`, as written.
    pub fn method(&self) -> &str {
        self.after_scheme().split('/').next().unwrap_or_default()
    }

    /// The part between the method and the query, without the leading slash.
    pub(crate) fn path(&self) -> &str {
        let path = self.after_scheme().split_once('/').map_or("", |(_, path)| path);
        path.split('?').next().unwrap_or_default()
    }

    /// The account within the bank: for `x-taler-bank` the part after the host, otherwise the last segment of
    /// the path (the IBAN of `iban`).
    pub fn account(&self) -> &str {
        let path = self.path();
        if self.method().eq_ignore_ascii_case("x-taler-bank") {
            path.split_once('/').map_or("", |(_, account)| account)
        } else {
            path.rsplit('/').next().unwrap_or_default()
        }
    }

    /// The first segment of the path: the bank of `x-taler-bank`, with its port.
    pub fn host(&self) -> &str {
        self.path().split('/').next().unwrap_or_default()
    }

    /// A parameter of the query as written.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        let (_, query) = self.0.split_once('?')?;
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// The name of the account's owner, with escapes and `+` decoded.
    pub fn receiver_name(&self) -> Option<Cow<'_, str>> {
        let raw = self.parameter("receiver-name")?;
        if !raw.contains(['%', '+']) {
            return Some(Cow::Borrowed(raw));
        }
        // A plus sign that is meant as one is escaped.
        let bytes = unescaped(&raw.replace('+', " "));
        Some(Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// `h_payto`, which identifies the account: first half of SHA-512 over the URI and a zero byte.
    pub fn hash(&self) -> ShortHash {
        h_payto(&self.0)
    }

    /// `h_wire`, by which a merchant identifies its account in contracts without revealing it to the wallet.
    pub fn wire_hash(&self, salt: &WireSalt) -> HashCode {
        h_wire(&self.0, salt)
    }
}

/// `h_payto` of any text: first half of SHA-512 over it and a zero byte. See [`PaytoUri::hash`].
pub fn h_payto(payto_uri: &str) -> ShortHash {
    shorten(&hash_text(payto_uri))
}

/// Hash of the account that a payto URI names, equal for all spellings of the URI. It is never sent.
///
/// Spellings differ in their parameters (such as the receiver's name), in letter case, in escapes and in superfluous
/// slashes. An IBAN is the account whatever BIC stands before it. Of an `x-taler-bank` URI only the account's name
/// counts, because a bank takes any host for its own. Two accounts whose names differ in case alone are one here:
/// their operations count together, never less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountHash(ShortHash);

impl AccountHash {
    /// The size of a hash in bytes.
    pub const SIZE: usize = ShortHash::SIZE;

    /// The account of a URI. A text that is no payto URI is an account of its own.
    #[must_use]
    pub fn of(payto_uri: &str) -> Self {
        let key = account_key(payto_uri);
        Self(h_payto(key.as_deref().unwrap_or(payto_uri)))
    }

    /// The bytes, for stores.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::SIZE] {
        self.0.as_bytes()
    }

    /// A stored hash.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self(ShortHash::from_bytes(bytes))
    }
}

/// The one spelling of a URI that stands for all.
fn account_key(payto_uri: &str) -> Option<String> {
    let (prefix, rest) = payto_uri.split_at_checked("payto://".len())?;
    if !prefix.eq_ignore_ascii_case("payto://") {
        return None;
    }
    let path = rest.split('?').next().unwrap_or_default();
    let path = String::from_utf8_lossy(&unescaped(path)).to_lowercase();
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let method = parts.next()?;
    let parts: Vec<&str> = parts.collect();
    let account = match (method, parts.as_slice()) {
        ("iban", [.., account]) => (*account).to_owned(),
        ("x-taler-bank", [_, account @ ..]) if !account.is_empty() => account.join("/"),
        (_, parts) => parts.join("/"),
    };
    Some(format!("payto://{method}/{account}"))
}

/// Decodes percent escapes; incomplete ones stay.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    let digit = |byte: &u8| (*byte as char).to_digit(16);
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'%', [high, low, after @ ..]) if digit(high).is_some() && digit(low).is_some() => {
                let value = digit(high).unwrap_or_default() << 4 | digit(low).unwrap_or_default();
                bytes.push(value as u8);
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    bytes
}

/// `h_wire` of any text: KDF with the salt over it and a zero byte. See [`PaytoUri::wire_hash`].
pub fn h_wire(payto_uri: &str, salt: &WireSalt) -> HashCode {
    HashCode::from_bytes(kdf_array(
        salt.as_bytes(),
        &[payto_uri.as_bytes(), &[0]].concat(),
        &[b"merchant-wire-signature"],
    ))
}

fn validate(text: &str, charset: Charset) -> Result<(), PaytoError> {
    check_text(text, PAYTO_BYTES_MAX)?;
    let rest = match text.split_at_checked("payto://".len()) {
        Some((prefix, rest)) if prefix.eq_ignore_ascii_case("payto://") => rest,
        _ => return Err(PaytoError::Prefix),
    };
    let bytes = rest.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b if b.is_ascii_alphanumeric() || b"/:&?-.,=+".contains(&b) => i += 1,
            b'%' if charset == Charset::Escapes
                && bytes.get(i + 1..i + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) =>
            {
                i += 3;
            }
            _ => return Err(PaytoError::Character),
        }
    }
    let (method, after) = rest.split_once('/').ok_or(PaytoError::NoPath)?;
    if method.is_empty() || method.contains('?') {
        return Err(PaytoError::NoPath);
    }
    if method.eq_ignore_ascii_case("iban") {
        let (path, query) = after.split_once('?').unwrap_or((after, ""));
        validate_iban(path.rsplit('/').next().unwrap_or_default())?;
        if !query.split('&').any(|pair| pair.starts_with("receiver-name=")) {
            return Err(PaytoError::ReceiverName);
        }
    }
    Ok(())
}

/// Checks an IBAN: form, country and check digits (ISO 7064, modulo 97 gives 1).
///
/// # Errors
/// [`PaytoError::Iban`], [`PaytoError::IbanCountry`] or [`PaytoError::IbanChecksum`].
pub fn validate_iban(iban: &str) -> Result<(), PaytoError> {
    let bytes = iban.as_bytes();
    if bytes.len() < 5 || bytes.len() > MAX_IBAN_LEN || !bytes.iter().all(u8::is_ascii_alphanumeric) {
        return Err(PaytoError::Iban);
    }
    let country = [bytes[0].to_ascii_uppercase(), bytes[1].to_ascii_uppercase()];
    if !IBAN_COUNTRIES.chunks_exact(2).any(|known| known == country) {
        return Err(PaytoError::IbanCountry);
    }
    if !bytes[2].is_ascii_digit() || !bytes[3].is_ascii_digit() {
        return Err(PaytoError::Iban);
    }
    if iban_remainder(bytes) == 1 { Ok(()) } else { Err(PaytoError::IbanChecksum) }
}

/// The IBAN of an account number: country, check digits, number (the bank's code and the account).
///
/// # Errors
/// [`PaytoError::Iban`] or [`PaytoError::IbanCountry`].
pub fn iban(country: &str, number: &str) -> Result<String, PaytoError> {
    if country.len() != 2 {
        return Err(PaytoError::IbanCountry);
    }
    let without_check = format!("{country}00{number}").to_ascii_uppercase();
    match validate_iban(&without_check) {
        // 00 and 97 have the same remainder; IBANs have 97.
        Ok(()) | Err(PaytoError::IbanChecksum) => {}
        Err(error) => return Err(error),
    }
    let check = 98 - iban_remainder(without_check.as_bytes());
    Ok(format!("{}{check:02}{}", &without_check[..2], &without_check[4..]))
}

/// Letters count as numbers from 10, and the first four characters as the last.
fn iban_remainder(bytes: &[u8]) -> u32 {
    bytes[4..].iter().chain(&bytes[..4]).fold(0u32, |acc, byte| match byte {
        b'0'..=b'9' => (acc * 10 + u32::from(byte - b'0')) % 97,
        letter => (acc * 100 + u32::from(letter.to_ascii_uppercase() - b'A') + 10) % 97,
    })
}

impl fmt::Display for PaytoUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PaytoUri {
    type Err = PaytoError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::parse(s)
    }
}

text_form!(PaytoUri, "a payto URI");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let uri =
            PaytoUri::parse("payto://x-taler-bank/localhost:8082/shop?receiver-name=A+%C3%9C&x=1").unwrap();
        assert_eq!(
            (uri.method(), uri.host(), uri.account(), uri.path()),
            ("x-taler-bank", "localhost:8082", "shop", "localhost:8082/shop")
        );
        assert_eq!(uri.receiver_name().as_deref(), Some("A Ü"));
        assert_eq!(uri.parameter("x"), Some("1"));
        assert!(PaytoUri::parse_strict(uri.as_str()).is_err());
        let iban =
            PaytoUri::parse("payto://iban/SOGEDEFFXXX/DE75512108001245126199?receiver-name=x").unwrap();
        assert_eq!(iban.account(), "DE75512108001245126199");
    }

    #[test]
    fn refusals() {
        for (text, error) in [
            ("payto:/iban/x", PaytoError::Prefix),
            ("pay", PaytoError::Prefix),
            ("payto://x-taler-bank", PaytoError::NoPath),
            ("payto:///x", PaytoError::NoPath),
            ("payto://iban?/x", PaytoError::NoPath),
            ("payto://x-taler-bank/a b", PaytoError::Character),
            ("payto://x-taler-bank/a%2", PaytoError::Character),
            ("payto://x-taler-bank/a_b", PaytoError::Character),
            ("payto://iban/DE?receiver-name=x", PaytoError::Iban),
            ("payto://iban/XX75512108001245126199?receiver-name=x", PaytoError::IbanCountry),
            ("payto://iban/DE75512108001245126190?receiver-name=x", PaytoError::IbanChecksum),
            ("payto://iban/DE75512108001245126199", PaytoError::ReceiverName),
        ] {
            assert_eq!(PaytoUri::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_uri_has_a_limit() {
        let start = "payto://x-taler-bank/localhost/1?receiver-name=";
        let fits = format!("{start}{}", "x".repeat(PAYTO_BYTES_MAX - start.len()));
        assert!(PaytoUri::parse(fits.clone()).is_ok());
        let error = PaytoUri::parse(fits + "x").unwrap_err();
        assert_eq!(error.to_string(), "over the limit of 2048 bytes");
    }

    #[test]
    fn builds_accounts() {
        let uri = PaytoUri::x_taler_bank("localhost:1", "shop", Some("A b")).unwrap();
        assert_eq!(uri.as_str(), "payto://x-taler-bank/localhost:1/shop?receiver-name=A%20b");
        assert_eq!(uri.receiver_name().as_deref(), Some("A b"));
        assert!(PaytoUri::x_taler_bank("localhost", "a/b", None).is_err());
    }

    #[test]
    fn all_spellings_of_an_account_are_one_account() {
        let same = |texts: &[&str]| {
            let hashes =
                texts.iter().map(|text| AccountHash::of(text)).collect::<std::collections::HashSet<_>>();
            assert_eq!(hashes.len(), 1, "{texts:?}");
            hashes.into_iter().next().unwrap()
        };
        let iban = same(&[
            "payto://iban/DE75512108001245126199?receiver-name=A",
            "payto://iban/DE75512108001245126199?receiver-name=B&amount=KUDOS:1",
            "PAYTO://IBAN/SOGEDEFFXXX/de75512108001245126199?receiver-name=A",
            "payto://iban//SOGEDEFFXXX/DE75512108001245126199/?receiver-name=A",
            "payto://%69ban/%44E75512108001245126199",
        ]);
        let bank = same(&[
            "payto://x-taler-bank/bank.example/shop?receiver-name=Shop",
            "payto://x-taler-bank/bank.example:443/shop",
            "payto://X-Taler-Bank/BANK.EXAMPLE./SHOP/",
            "payto://x-taler-bank/localhost/%73hop?receiver-name=x",
            // Without a host.
            "payto://x-taler-bank/shop",
            "payto://x-taler-bank/Shop/",
        ]);
        let other = same(&["payto://x-taler-bank/bank.example/shop2"]);
        let reserve =
            same(&["payto://taler-reserve/ex.example/a/KEY", "payto://taler-reserve/EX.example//a/key/"]);
        let elsewhere = same(&["payto://taler-reserve/ex2.example/a/KEY"]);
        let none = same(&["nonsense"]);
        let all = [iban, bank, other, reserve, elsewhere, none];
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn check_digits() {
        // Examples of the IBAN registry (SWIFT).
        for known in ["DE89370400440532013000", "GB29NWBK60161331926819", "NL91ABNA0417164300"] {
            assert_eq!(iban(&known[..2], &known[4..]).as_deref(), Ok(known));
            assert_eq!(iban(&known[..2].to_lowercase(), &known[4..].to_lowercase()).as_deref(), Ok(known));
        }
        assert_eq!(iban("XX", "370400440532013000"), Err(PaytoError::IbanCountry));
        assert_eq!(iban("DE", ""), Err(PaytoError::Iban));
        assert_eq!(iban("DE", "37 04"), Err(PaytoError::Iban));
        // Remainders 0 to 96, so all check digits from 02 to 98, are right.
        for number in 0..500 {
            assert_eq!(validate_iban(&iban("DE", &format!("5001{number}")).unwrap()), Ok(()), "{number}");
        }
    }

    #[test]
    fn country_list_is_well_formed() {
        let pairs: Vec<_> = IBAN_COUNTRIES.chunks(2).collect();
        assert!(pairs.iter().all(|pair| pair.len() == 2 && pair.iter().all(u8::is_ascii_uppercase)));
        assert!(pairs.windows(2).all(|w| w[0] < w[1]));
    }
}
