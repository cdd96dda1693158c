//! The stored record of a withdrawal.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode, PlanchetMasterSecret};
use batzen_protocol::Money;
use serde::{Deserialize, Serialize};

use super::super::age::{AgeLimit, CoinAge};
use super::super::coin::CsSession;
use super::super::encoding::text;
use super::super::exchange::{CipherChoice, Exchange};
use super::super::kyc::KycWanted;
use crate::core::error::Result;

/// Source of the money.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Origin {
    /// A withdrawal operation at a bank.
    Bank(BankOperation),
    /// The user makes the transfer.
    Manual {
        /// Account of the exchange.
        payto: String,
    },
    /// A recoup paid coins of a revoked denomination into the reserve.
    Recoup,
    /// Other people paid into the reserve with purses.
    Purse,
}

/// A withdrawal operation at a bank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BankOperation {
    /// Base URL of its integration API.
    pub(crate) integration_url: String,
    pub(crate) operation_id: String,
    /// Account of the exchange, as the exchange writes it.
    pub(crate) exchange_payto: String,
    /// URL where the user confirms, if the bank gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confirm_url: Option<String>,
    /// Login with which the wallet confirms by itself, at a test bank. Erased after the confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confirm: Option<BankLogin>,
}

/// An account at a bank's access API.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BankLogin {
    /// Base URL of the access API.
    pub access_url: String,
    /// Account name.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for BankLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BankLogin({} at {})", self.user, self.access_url)
    }
}

/// Stage of a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithdrawStage {
    /// Send the reserve key to the bank.
    Select,
    /// Confirm at the bank.
    Confirm,
    /// Wait for the bank's transfer.
    AwaitTransfer,
    /// Wait for the money to reach the reserve.
    AwaitReserve,
    /// Withdraw coins.
    Withdraw,
    /// Finished.
    Done,
    /// Given up before money moved.
    Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PlanchetState {
    /// To be sent.
    Open,
    /// Its coin is in the wallet.
    Done,
    /// Its denomination can no longer be withdrawn.
    Dropped,
}

/// A coin to be withdrawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanchetRecord {
    /// Coin number under the seed.
    pub(crate) index: u32,
    pub(crate) h_denom_pub: HashCode,
    /// The exchange's first message, for Clause-Schnorr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cs: Option<CsSession>,
    /// The age commitment of an age-restricted coin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) age: Option<CoinAge>,
    pub(crate) state: PlanchetState,
}

/// A withdrawal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawal {
    /// Private key of the reserve.
    pub reserve_priv: EddsaPrivateKey,
    /// Public key of the reserve: the subject of the bank transfer.
    pub reserve_pub: EddsaPublicKey,
    /// Seed from which all coins derive.
    pub seed: PlanchetMasterSecret,
    /// Amount to leave the bank account.
    #[serde(with = "text")]
    pub amount: Money,
    /// Preferred kind of blind signature.
    pub cipher: CipherChoice,
    /// The age restriction of its coins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<AgeLimit>,
    /// Source of the money.
    pub origin: Origin,
    /// Its stage.
    pub stage: WithdrawStage,
    /// The next unused coin number.
    pub next_index: u32,
    /// Coins in the order of their numbers.
    pub planchets: Vec<PlanchetRecord>,
    /// Whether several coins go into one request. False for exchanges that do not support this.
    pub batch: bool,
    /// The remainder that no coin fits. It stays in the reserve and returns to the sender when the reserve
    /// closes.
    #[serde(with = "text")]
    pub leftover: Money,
    /// Amount that recoups paid into the reserve while this withdrawal waited for it.
    #[serde(default, with = "text")]
    pub recouped: Money,
    /// Part of the amount that came through purses. Their receipts count it, so this withdrawal does not.
    #[serde(default, with = "text")]
    pub from_purses: Money,
    /// Part of the amount that came after the coins were planned. More coins are planned for it later.
    #[serde(default, with = "text")]
    pub unplanned: Money,
    /// Amount that this withdrawal expects in the reserve and that the exchange proved to be missing.
    #[serde(default, with = "text")]
    pub missing: Money,
    /// Part of the leftover that was recouped into the reserve, but that the exchange says is not there. It
    /// is less than a coin, so the wallet cannot demand a proof.
    #[serde(default, with = "text")]
    pub unproved: Money,
    /// Amount that the user has not transferred yet, according to the exchange.
    #[serde(default, with = "text")]
    pub awaited: Money,
    /// Set while the exchange requires an identity check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kyc: Option<KycWanted>,
    /// Why the withdrawal was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Withdrawal {
    /// The expected balance of the reserve: everything that came in, less what was withdrawn or is proven to
    /// be missing.
    ///
    /// # Errors
    /// [`CoreError::UnknownDenomination`] if records contradict each other.
    pub(crate) fn owed(&self, exchange: &Exchange) -> Result<Money> {
        let (value, fees) = self.totals(exchange, &[PlanchetState::Done])?;
        let gone = value.checked_add(fees)?.checked_add(self.missing)?;
        Ok(self.amount.checked_add(self.recouped)?.checked_sub(gone).unwrap_or(Money::ZERO))
    }

    /// Sum of values and withdraw fees of the planchets in one of the given states.
    ///
    /// # Errors
    /// [`CoreError::UnknownDenomination`] if records contradict each other.
    pub(crate) fn totals(&self, exchange: &Exchange, states: &[PlanchetState]) -> Result<(Money, Money)> {
        let (mut value, mut fees) = (Money::ZERO, Money::ZERO);
        for planchet in self.planchets.iter().filter(|planchet| states.contains(&planchet.state)) {
            let denom = exchange.denom(&planchet.h_denom_pub)?;
            value = value.checked_add(denom.value)?;
            fees = fees.checked_add(denom.fee_withdraw)?;
        }
        Ok((value, fees))
    }
}
