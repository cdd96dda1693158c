//! The expiration calendar of a running exchange, and its metrics `batzen_expiry_*`.

use batzen_crypto::Cipher;
use batzen_metrics::Page;
use batzen_protocol::Timestamp;

use super::KeyState;
use crate::app::Exchange;
use crate::calendar::{Calendar, Coverage, Kind, Period, denomination_item};
use crate::config::CipherConfig;
use crate::rules::transfers::payto_method;

/// The longest label value, in characters.
const LABEL_CHARS_MAX: usize = 32;

impl Exchange {
    /// The periods of configured denominations, signing keys and fees. A key counts as long as its private
    /// key is available and it is not revoked.
    pub(crate) fn calendar(&self) -> Calendar {
        let (config, keys) = (&self.core.config, self.keys());
        let items: Vec<String> = config
            .coins
            .iter()
            .map(|coin| denomination_item(coin.value.of(config.currency), cipher_of(coin.cipher)))
            .collect();
        let mut periods: Vec<Period> = self.key_periods(&keys);
        periods.retain(|period| period.kind != Kind::Denomination || items.contains(&period.item));
        let methods: Vec<&str> =
            keys.accounts.iter().filter_map(|account| payto_method(&account.payto_uri)).collect();
        periods.extend(fee_periods(&keys, &methods));
        let mut calendar = Calendar::new(periods).require(Kind::SigningKey, "").require(Kind::GlobalFee, "");
        for item in &items {
            calendar = calendar.require(Kind::Denomination, item);
        }
        for method in methods {
            calendar = calendar.require(Kind::WireFee, method);
        }
        calendar
    }

    /// The periods of denominations and signing keys, signed or not.
    fn key_periods(&self, keys: &KeyState) -> Vec<Period> {
        let (config, currency) = (&self.core.config, self.core.config.currency);
        let usable = keys.denoms().iter().filter(|denom| !denom.revoked && denom.can_sign());
        let denominations = usable.map(|denom| Period {
            kind: Kind::Denomination,
            item: denomination_item(denom.value.of(currency), denom.cipher),
            start: denom.start,
            end: denom.expire_withdraw,
            is_signed: true,
        });
        let future = keys.future_denoms(&self.custody, config);
        let future = future.iter().map(|denom| Period {
            kind: Kind::Denomination,
            item: denomination_item(denom.row.value.of(currency), denom.row.cipher),
            start: denom.row.start,
            end: denom.row.expire_withdraw,
            is_signed: false,
        });
        let signing_key = |(start, end), is_signed| Period {
            kind: Kind::SigningKey,
            item: String::new(),
            start,
            end,
            is_signed,
        };
        let held = self.custody.signing_keys();
        let is_held = |key| held.iter().any(|handle| handle.public_key() == key);
        let signing = keys.signing_keys.iter().filter(|key| !key.revoked && is_held(key.exchange_pub));
        let signing = signing.map(|key| signing_key((key.start, key.expire), true));
        let future_signing = keys.future_signkeys(&self.custody, config);
        let future_signing =
            future_signing.iter().map(|key| signing_key((key.stamp_start, key.stamp_expire), false));
        denominations.chain(future).chain(signing).chain(future_signing).collect()
    }

    /// Writes `batzen_expiry_*`.
    pub(crate) fn write_expiry(&self, page: &mut Page) {
        let now = self.core.now();
        let coverage: Vec<(String, Coverage)> = self
            .calendar()
            .coverage(now)
            .into_iter()
            .map(|coverage| (label(&coverage.item), coverage))
            .collect();
        let rows = |value: fn(&Coverage, Timestamp) -> u64| {
            coverage.iter().map(move |(item, row)| ([row.kind.name(), item.as_str()], value(row, now)))
        };
        let labels = ["kind", "item"];
        page.labelled_gauges(
            "batzen_expiry_seconds",
            "Seconds until signed keys or fees end without a successor; 0 if none is in force",
            labels,
            rows(Coverage::seconds_left),
        );
        page.labelled_gauges(
            "batzen_expiry_timestamp_seconds",
            "When signed keys or fees end without a successor, by the exchange's clock",
            labels,
            rows(|row, now| row.sign_by(now).as_micros() / 1_000_000),
        );
        page.labelled_gauges(
            "batzen_expiry_gap_seconds",
            "Length of the first gap before later signed keys or fees; 0 without a gap",
            labels,
            rows(|row, _| row.gap_seconds()),
        );
        page.labelled_gauges(
            "batzen_expiry_unsigned",
            "Keys that wait for the offline signature",
            labels,
            rows(|row, _| row.unsigned as u64),
        );
    }
}

fn cipher_of(config: CipherConfig) -> Cipher {
    match config {
        CipherConfig::Rsa { .. } => Cipher::Rsa,
        CipherConfig::Cs => Cipher::Cs,
    }
}

/// The periods of the global fees, and of the wire fees of these methods. All are signed.
fn fee_periods(keys: &KeyState, methods: &[&str]) -> Vec<Period> {
    let period =
        |kind, item: &str, start, end| Period { kind, item: item.to_owned(), start, end, is_signed: true };
    let global = keys.global_fees.iter().map(|(start, fee)| period(Kind::GlobalFee, "", *start, fee.end));
    let wire = methods.iter().flat_map(|method| {
        let fees = keys.wire_fees(method).iter();
        fees.map(|(start, fee)| period(Kind::WireFee, method, *start, fee.end))
    });
    global.chain(wire).collect()
}

/// A label's value: bounded, and without characters that need escapes.
fn label(item: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " .:_-".contains(c);
    item.chars().take(LABEL_CHARS_MAX).map(|c| if is_plain(c) { c } else { '_' }).collect()
}
