//! Input of the reports. Amounts are ten-thousandths of the currency, as in the participants' interface.

use batzen_protocol::calendar::{Date, format_ms};

use crate::reports::ReportError;

/// Digits after the point in these amounts.
const SCALE_DIGITS: u32 = 4;
/// Digits of an amount in an ISO 20022 message.
const ISO_DIGITS_MAX: u32 = 18;

/// A currency and its number of decimals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Currency {
    /// ISO 4217 code: three capital letters.
    pub code: String,
    /// Digits after the point of the smallest payable unit, at most 4.
    pub decimals: u32,
}

impl Currency {
    /// A currency with the decimals of ISO 4217, or 2 if ISO 4217 does not list it, for example a test
    /// currency.
    ///
    /// # Errors
    /// If the code is not three capital letters.
    pub fn new(code: &str) -> Result<Self, ReportError> {
        if code.len() != 3 || !code.bytes().all(|byte| byte.is_ascii_uppercase()) {
            let text = code.to_owned();
            return Err(ReportError::Text { field: "Ccy", text, expected: "three capital letters" });
        }
        let decimals = match code {
            "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "UYI"
            | "VND" | "VUV" | "XAF" | "XOF" | "XPF" => 0,
            "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
            "CLF" | "UYW" => 4,
            _ => 2,
        };
        Ok(Self { code: code.to_owned(), decimals })
    }

    /// Formats an amount with the currency's decimals.
    ///
    /// # Errors
    /// If the amount is finer than the currency, or has more digits than a message can carry.
    pub fn format(&self, amount: u128) -> Result<String, ReportError> {
        assert!(self.decimals <= SCALE_DIGITS, "a currency is not finer than the switch counts");
        let step = 10_u128.pow(SCALE_DIGITS - self.decimals);
        if !amount.is_multiple_of(step) {
            return Err(ReportError::TooFine { amount, currency: self.code.clone() });
        }
        let units = amount / step;
        if units >= 10_u128.pow(ISO_DIGITS_MAX) {
            return Err(ReportError::TooLarge);
        }
        Ok(decimal(units, self.decimals))
    }

    /// Formats a signed amount.
    ///
    /// # Errors
    /// As [`Self::format`].
    pub fn format_signed(&self, amount: i128) -> Result<String, ReportError> {
        let digits = self.format(amount.unsigned_abs())?;
        Ok(if amount < 0 { format!("-{digits}") } else { digits })
    }
}

fn decimal(units: u128, decimals: u32) -> String {
    if decimals == 0 {
        return units.to_string();
    }
    let one = 10_u128.pow(decimals);
    format!("{}.{:0width$}", units / one, units % one, width = decimals as usize)
}

/// An instant: milliseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// `2026-11-21`.
    #[must_use]
    pub fn date(self) -> String {
        Date::of_ms(self.0).to_string()
    }

    /// `2026-11-21T15:04:05.678Z`.
    #[must_use]
    pub fn date_time(self) -> String {
        format_ms(self.0)
    }
}

/// A bank, as known to the settlement bank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Its name at the switch, which is its member id in the clearing system.
    pub name: String,
    /// Its BIC, if it has one.
    pub bic: Option<String>,
    /// Its account at the settlement bank.
    pub account: String,
}

/// One participant's part in a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// The participant.
    pub participant: Agent,
    /// Number of transfers that it sent.
    pub sent_count: u64,
    /// Their sum.
    pub sent: u128,
    /// Number of transfers that it received.
    pub received_count: u64,
    /// Their sum.
    pub received: u128,
    /// Sent minus received. A participant with a positive net pays, one with a negative net is paid.
    pub net: i128,
}

/// A settlement in one currency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Its id at the switch. At most 35 characters, including the suffixes of message and participant.
    pub id: String,
    /// The currency.
    pub currency: Currency,
    /// Its date, which messages carry.
    pub created: Instant,
    /// The windows that it settles.
    pub windows: Vec<u64>,
    /// The clearing system, with its account at the settlement bank that all payments pass through.
    pub hub: Agent,
    /// Every participant with transfers, in the order of the reports.
    pub nets: Vec<Net>,
}

impl Settlement {
    /// The sum of all positive nets, which equals the sum of all negative ones.
    ///
    /// # Errors
    /// If a net is not sent minus received, or the nets do not sum to zero.
    pub fn check(&self) -> Result<u128, ReportError> {
        let (mut sum, mut paid) = (0_i128, 0_u128);
        for net in &self.nets {
            let signed = |amount: u128| i128::try_from(amount).map_err(|_| ReportError::TooLarge);
            if signed(net.sent)?.checked_sub(signed(net.received)?) != Some(net.net) {
                return Err(ReportError::WrongNet {
                    participant: net.participant.name.clone(),
                    sent: net.sent,
                    received: net.received,
                    net: net.net,
                });
            }
            sum = sum.checked_add(net.net).ok_or(ReportError::TooLarge)?;
            if net.net > 0 {
                paid = paid.checked_add(net.net.unsigned_abs()).ok_or(ReportError::TooLarge)?;
            }
        }
        if sum != 0 {
            return Err(ReportError::Unbalanced { settlement: self.id.clone(), sum });
        }
        Ok(paid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_decimals_of_their_currency() {
        for (code, amount, expected) in [
            ("USD", 12_345_600, "1234.56"),
            ("USD", 100, "0.01"),
            ("JPY", 10_000, "1"),
            ("KWD", 10, "0.001"),
            ("CLF", 1, "0.0001"),
            ("USD", 0, "0.00"),
        ] {
            assert_eq!(Currency::new(code).unwrap().format(amount).unwrap(), expected, "{code}");
        }
        let dollar = Currency::new("USD").unwrap();
        assert_eq!(dollar.format_signed(-15_000).unwrap(), "-1.50");
        assert!(matches!(dollar.format(1), Err(ReportError::TooFine { .. })));
        assert_eq!(dollar.format(99_999_999_999_999_999_900).unwrap(), "9999999999999999.99");
        assert_eq!(dollar.format(100_000_000_000_000_000_000), Err(ReportError::TooLarge));
        for wrong in ["", "usd", "EURO", "E1R"] {
            assert!(Currency::new(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Instant(ms).date_time(), expected);
        }
    }
}
