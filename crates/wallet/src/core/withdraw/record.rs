//! What a withdrawal remembers.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode, PlanchetMasterSecret};
use batzen_protocol::Money;
use serde::{Deserialize, Serialize};

use super::super::CoreError;
use super::super::coin::CsSession;
use super::super::encoding::text;
use super::super::exchange::{CipherChoice, Exchange};

/// Where the money comes from.
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
    /// Coins of a revoked denomination were paid back into the reserve.
    Recoup,
}

/// A withdrawal operation at a bank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BankOperation {
    /// Base URL of its integration API.
    pub integration_url: String,
    /// Identifier of the operation.
    pub operation_id: String,
    /// Account of the exchange, as the exchange writes it.
    pub exchange_payto: String,
    /// Where the user confirms, if the bank says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_url: Option<String>,
    /// How the wallet confirms by itself: for test banks, where the user gave it the account. Forgotten once done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<BankLogin>,
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

/// How far a withdrawal got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithdrawStage {
    /// Tells the bank which reserve.
    Select,
    /// Confirms at the bank.
    Confirm,
    /// Waits for the bank to transfer.
    AwaitTransfer,
    /// Waits for the money to reach the reserve.
    AwaitReserve,
    /// Gets coins.
    Withdraw,
    /// Finished.
    Done,
    /// Given up before money moved.
    Aborted,
}

/// How far one planchet got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanchetState {
    /// To be sent.
    Open,
    /// Its coin is in the wallet.
    Done,
    /// Its denomination can no longer be withdrawn.
    Dropped,
}

/// One coin to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanchetRecord {
    /// Coin number under the seed.
    pub index: u32,
    /// Denomination.
    pub h_denom_pub: HashCode,
    /// The exchange's first message, for Clause-Schnorr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cs: Option<CsSession>,
    /// How far it got.
    pub state: PlanchetState,
}

/// What the exchange wants to know about the user first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KycWanted {
    /// Account it asks about.
    pub h_payto: String,
    /// Number of the requirement.
    pub requirement_row: u64,
    /// Where the user goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A withdrawal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawal {
    /// Key of the reserve.
    pub reserve_priv: EddsaPrivateKey,
    /// Its public key: the subject of the bank transfer.
    pub reserve_pub: EddsaPublicKey,
    /// All coins derive from it.
    pub seed: PlanchetMasterSecret,
    /// What shall leave the bank account.
    #[serde(with = "text")]
    pub amount: Money,
    /// Which blind signatures the user likes.
    pub cipher: CipherChoice,
    /// Where the money comes from.
    pub origin: Origin,
    /// How far it got.
    pub stage: WithdrawStage,
    /// The next unused coin number.
    pub next_index: u32,
    /// Coins in the order of their numbers.
    pub planchets: Vec<PlanchetRecord>,
    /// Whether several coins go into one request; not with exchanges that cannot.
    pub batch: bool,
    /// What no coin fits into; it stays in the reserve and returns to the sender when the reserve closes.
    #[serde(with = "text")]
    pub leftover: Money,
    /// What was paid back into the reserve by recoups while this withdrawal waited for it.
    #[serde(default, with = "text")]
    pub recouped: Money,
    /// What the exchange proved not to be in the reserve, of what this withdrawal expects there.
    #[serde(default, with = "text")]
    pub missing: Money,
    /// Of the leftover, what the exchange says is not in the reserve, though it was paid back there. Too little for a coin, so that no
    /// proof can be demanded.
    #[serde(default, with = "text")]
    pub unproved: Money,
    /// What the user has not transferred yet, by the exchange's account.
    #[serde(default, with = "text")]
    pub awaited: Money,
    /// Set while the exchange wants to know the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kyc: Option<KycWanted>,
    /// Why it was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Withdrawal {
    /// What the reserve should still hold: what came in, without what was withdrawn or is proven to be missing.
    ///
    /// # Errors
    /// [`CoreError::UnknownDenomination`] if records contradict each other.
    pub fn owed(&self, exchange: &Exchange) -> Result<Money, CoreError> {
        let (value, fees) = self.totals(exchange, &[PlanchetState::Done])?;
        let gone = value.checked_add(fees)?.checked_add(self.missing)?;
        Ok(self.amount.checked_add(self.recouped)?.checked_sub(gone).unwrap_or(Money::ZERO))
    }

    /// Values and withdraw fees of the planchets in one of the given states.
    ///
    /// # Errors
    /// [`CoreError::UnknownDenomination`] if records contradict each other.
    pub fn totals(&self, exchange: &Exchange, states: &[PlanchetState]) -> Result<(Money, Money), CoreError> {
        let (mut value, mut fees) = (Money::ZERO, Money::ZERO);
        for planchet in self.planchets.iter().filter(|planchet| states.contains(&planchet.state)) {
            let denom = exchange.denom(&planchet.h_denom_pub)?;
            value = value.checked_add(denom.value)?;
            fees = fees.checked_add(denom.fee_withdraw)?;
        }
        Ok((value, fees))
    }
}
