//! Checks amounts and URLs before any request, computation or output.

use batzen_protocol::TalerUri;
use batzen_protocol::payto::PaytoUri;
use batzen_wallet::bank::parse_withdraw_uri;
use batzen_wallet::core::CoreError;
use batzen_wallet::core::purchase::order::PayUri;
use batzen_wallet::core::purchase::refunds;
use batzen_wallet::core::purse::lookup::PeerUri;
use batzen_wallet::core::url::normalise_base_url;
use batzen_wallet::{Amount, DepositAmount, TipUri};

/// An argument that cannot be used.
#[derive(Debug)]
pub(super) struct InputError {
    given: String,
    expected: &'static str,
    reason: String,
    example: &'static str,
}

impl std::fmt::Display for InputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { given, expected, reason, example } = self;
        write!(f, "{given:?} is not {expected}: {reason}; an example is {example}")
    }
}

impl std::error::Error for InputError {}

const AMOUNT: &str = "KUDOS:5";
const PAYTO: &str = "payto://x-taler-bank/localhost/zoe?receiver-name=zoe";
const WITHDRAW_URI: &str = "taler://withdraw/bank.example/taler-bank-integration/OPERATION";
const PEER_URI: &str = "taler://pay-push/exchange.example/KEY";
const REFUND_URI: &str = "taler://refund/shop.example/ORDER/";
const TIP_URI: &str = "taler://tip/shop.example/TIP";
const PAY_URI: &str = "taler://pay/shop.example/ORDER/";
const EXCHANGE: &str = "https://exchange.example/";
const BANK: &str = "https://bank.example/";

/// The error about an argument that the wallet refuses.
fn bad(given: &str, expected: &'static str, example: &'static str) -> impl FnOnce(CoreError) -> InputError {
    move |error| InputError { given: given.to_owned(), expected, reason: reason(error), example }
}

/// An amount above zero.
pub(super) fn amount(text: &str) -> Result<Amount, InputError> {
    let bad =
        |expected, reason: String| InputError { given: text.to_owned(), expected, reason, example: AMOUNT };
    let amount = Amount::parse(text.trim()).map_err(|error| bad("an amount", error.to_string()))?;
    if amount.is_zero() {
        return Err(bad("an amount to transfer", "it must be more than zero".to_owned()));
    }
    Ok(amount)
}

/// An amount above zero, or `all`.
pub(super) fn deposit_amount(text: &str) -> Result<DepositAmount, InputError> {
    if text.trim().eq_ignore_ascii_case("all") {
        return Ok(DepositAmount::All);
    }
    amount(text).map(DepositAmount::Exact)
}

/// A bank account. The signature of a deposit covers the text, so it is returned unchanged.
pub(super) fn payto(text: &str) -> Result<&str, InputError> {
    let text = text.trim();
    PaytoUri::parse(text).map(|_| text).map_err(|error| InputError {
        given: text.to_owned(),
        expected: "a payto URI",
        reason: error.to_string(),
        example: PAYTO,
    })
}

/// A `taler://withdraw` URI.
pub(super) fn withdraw_uri(text: &str) -> Result<(), InputError> {
    parse_withdraw_uri(text).map(|_| ()).map_err(bad(text, "a taler://withdraw URI", WITHDRAW_URI))
}

/// Returns whether a URI is about a payment between people.
pub(super) fn is_peer_uri(text: &str) -> bool {
    matches!(TalerUri::parse(text.trim()), Ok(TalerUri::PayPush { .. } | TalerUri::PayPull { .. }))
}

/// A `taler://pay-push` or `taler://pay-pull` URI.
pub(super) fn peer_uri(text: &str) -> Result<(), InputError> {
    let expected = "a taler://pay-push or taler://pay-pull URI";
    PeerUri::parse(text).map(|_| ()).map_err(bad(text, expected, PEER_URI))
}

/// A `taler://pay` URI.
pub(super) fn pay_uri(text: &str) -> Result<(), InputError> {
    PayUri::parse(text).map(|_| ()).map_err(bad(text, "a taler://pay URI", PAY_URI))
}

/// A `taler://tip` URI.
pub(super) fn tip_uri(text: &str) -> Result<TipUri, InputError> {
    TipUri::parse(text).map_err(bad(text, "a taler://tip URI", TIP_URI))
}

/// A purchase: its number, or a `taler://refund` URI.
pub(super) enum PurchaseName {
    /// The number of its operation.
    Id(u64),
    Uri(String),
}

/// The number of a purchase, or a `taler://refund` URI.
pub(super) fn purchase(text: &str) -> Result<PurchaseName, InputError> {
    if let Ok(id) = text.trim().parse() {
        return Ok(PurchaseName::Id(id));
    }
    let expected = "a taler://refund URI or the number of a purchase";
    let uri = refunds::parse_uri(text).map_err(bad(text, expected, REFUND_URI));
    uri.map(|_| PurchaseName::Uri(text.to_owned()))
}

/// A URI that `accept` takes.
pub(super) fn accept_uri(text: &str) -> Result<(), InputError> {
    match TalerUri::parse(text.trim()) {
        Ok(TalerUri::PayPush { .. } | TalerUri::PayPull { .. }) => peer_uri(text),
        Ok(TalerUri::Pay { .. }) => Err(InputError {
            given: text.to_owned(),
            expected: "an offer or a request of a person",
            reason: "it comes from a shop, which `batzen wallet pay` pays".to_owned(),
            example: PEER_URI,
        }),
        _ => withdraw_uri(text),
    }
}

/// The base URL of an exchange, in canonical form.
pub(super) fn exchange_url(text: &str) -> Result<String, InputError> {
    base_url(text, "the URL of an exchange", EXCHANGE)
}

/// The base URL of a bank, in canonical form.
pub(super) fn bank_url(text: &str) -> Result<String, InputError> {
    base_url(text, "the URL of a bank", BANK)
}

fn base_url(text: &str, expected: &'static str, example: &'static str) -> Result<String, InputError> {
    normalise_base_url(text).map_err(bad(text, expected, example))
}

fn reason(error: CoreError) -> String {
    match error {
        CoreError::BadUrl { reason, .. } | CoreError::BadInput { reason, .. } => reason,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_is_refused_with_a_reason_and_an_example() {
        let errors = [
            amount("5").unwrap_err(),
            amount("KUDOS:0").unwrap_err(),
            amount("KUDOS:-5").unwrap_err(),
            deposit_amount("everything").unwrap_err(),
            payto("zoe").unwrap_err(),
            withdraw_uri("taler://pay/x").unwrap_err(),
            accept_uri("taler://pay-push/exchange.example/KEY").unwrap_err(),
            accept_uri(PAY_URI).unwrap_err(),
            peer_uri(WITHDRAW_URI).unwrap_err(),
            pay_uri(PEER_URI).unwrap_err(),
            pay_uri("taler://pay/shop.example/ORDER").unwrap_err(),
            tip_uri(PAY_URI).unwrap_err(),
            purchase("chair").err().unwrap(),
            purchase(PAY_URI).err().unwrap(),
            exchange_url("ftp://exchange.example/").unwrap_err(),
            bank_url("http://bank:99999999/").unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(&format!("{:?}", error.given)) && text.contains("an example is"), "{text}");
        }
    }

    #[test]
    fn good_input_is_accepted() {
        assert_eq!(amount("KUDOS:5").unwrap().to_string(), "KUDOS:5");
        assert_eq!(deposit_amount("ALL").unwrap(), DepositAmount::All);
        for example in [PAYTO, "payto://iban/DE75512108001245126199?receiver-name=zoe"] {
            assert_eq!(payto(example).unwrap(), example);
        }
        withdraw_uri(WITHDRAW_URI).unwrap();
        accept_uri(WITHDRAW_URI).unwrap();
        pay_uri(PAY_URI).unwrap();
        tip_uri(TIP_URI).unwrap();
        assert!(matches!(purchase(REFUND_URI), Ok(PurchaseName::Uri(_))));
        assert!(matches!(purchase("12"), Ok(PurchaseName::Id(12))));
        let key = batzen_crypto::EcdhePrivateKey::generate();
        for action in ["pay-push", "pay-pull"] {
            accept_uri(&format!("taler://{action}/exchange.example/{}", &*key.to_base32())).unwrap();
        }
        assert_eq!(exchange_url("exchange.example").unwrap(), EXCHANGE);
        assert_eq!(bank_url(BANK).unwrap(), BANK);
    }
}
