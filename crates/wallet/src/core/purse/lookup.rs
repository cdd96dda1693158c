//! Reads what a `taler://pay-push` or `taler://pay-pull` URI is about.

use batzen_crypto::{EcdhePrivateKey, EddsaPrivateKey, EddsaPublicKey, hash};
use batzen_protocol::api::exchange::ContractResponse;
use batzen_protocol::econtract::{PeerContract, contract_pub};
use batzen_protocol::signatures::{SignedMessage, WalletPurseEcontract};
use batzen_protocol::{ErrorCode, Money, TalerUri, Timestamp};

use super::super::exchange::Exchange;
use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::state::{OpId, OpKind};
use super::super::url::normalise_base_url;
use super::super::{CoreError, WalletState};
use super::{Direction, PurseTerms, Seen, WaitFor, is_full, read_status, status_request};
use crate::core::error::{Result, bad_input};

/// The content of a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUri {
    /// Whether it offers or requests money.
    pub(crate) direction: Direction,
    /// Base URL of the exchange.
    pub(crate) exchange: String,
    pub(crate) contract_priv: EcdhePrivateKey,
}

impl PeerUri {
    /// Parses a URI.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if it is not one.
    pub fn parse(uri: &str) -> Result<Self> {
        let malformed = |reason: String| bad_input("taler URI", reason);
        let parsed = TalerUri::parse(uri.trim()).map_err(|error| malformed(error.to_string()))?;
        let (direction, exchange_url, contract_priv) = match parsed {
            TalerUri::PayPush { exchange_url, contract_priv } => {
                (Direction::Push, exchange_url, contract_priv)
            }
            TalerUri::PayPull { exchange_url, contract_priv } => {
                (Direction::Pull, exchange_url, contract_priv)
            }
            _ => return Err(malformed("it neither offers nor requests money".to_owned())),
        };
        let contract_priv = contract_priv
            .parse()
            .map_err(|_| malformed("its last part is not a key of 32 bytes in base 32".to_owned()))?;
        Ok(Self { direction, exchange: normalise_base_url(&exchange_url)?, contract_priv })
    }

    /// Returns the connections to ask on: those of withdrawals for the receiver, those of payments for the
    /// payer.
    const fn context(&self) -> Context {
        match self.direction {
            Direction::Push => Context::Withdraw,
            Direction::Pull => Context::Deposit,
        }
    }

    /// Asks for the contract.
    #[must_use]
    pub fn contract_request(&self) -> HttpRequest {
        let url = format!("{}contracts/{}", self.exchange, contract_pub(&self.contract_priv));
        HttpRequest::get(self.context(), url)
    }

    /// Verifies and decrypts the contract.
    ///
    /// # Errors
    /// If there is none, or it is malformed or not signed by the purse.
    pub fn read_contract(self, exchange: &Exchange, response: &HttpResponse) -> Result<PeerContractTerms> {
        const WHAT: &str = "looking up the payment";
        match (response.status, response.code()) {
            (200, _) => {}
            (404, ErrorCode::EXCHANGE_CONTRACTS_UNKNOWN) => {
                return Err(bad_input(
                    "taler URI",
                    "the exchange knows no such payment: it was taken back, or never made",
                ));
            }
            _ => return Err(response.refusal(WHAT)),
        }
        let answer: ContractResponse = response.json(WHAT)?;
        let message = WalletPurseEcontract {
            h_econtract: hash::sha512(&answer.econtract.0),
            contract_pub: contract_pub(&self.contract_priv),
        };
        if !message.verify(&answer.purse_pub, &answer.econtract_sig) {
            return Err(CoreError::BadSignature { what: "the purse's signature of a contract" });
        }
        let decrypt = match self.direction {
            Direction::Push => PeerContract::decrypt_offer,
            Direction::Pull => PeerContract::decrypt_request,
        };
        let contract = decrypt(&self.contract_priv, &answer.purse_pub, &answer.econtract.0)
            .map_err(|error| bad_input("contract of the payment", error.to_string()))?;
        let (merge_priv, contract) = match contract {
            PeerContract::Offer { merge_priv, contract } => (Some(merge_priv), contract),
            PeerContract::Request { contract } => (None, contract),
        };
        Ok(PeerContractTerms {
            terms: PurseTerms::read(contract, exchange.currency)?,
            purse_pub: answer.purse_pub,
            merge_priv,
            uri: self,
        })
    }
}

/// A decrypted contract.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerContractTerms {
    uri: PeerUri,
    terms: PurseTerms,
    purse_pub: EddsaPublicKey,
    merge_priv: Option<EddsaPrivateKey>,
}

impl PeerContractTerms {
    /// Asks for the state of the purse.
    #[must_use]
    pub fn status_request(&self) -> HttpRequest {
        let target = match self.uri.direction {
            Direction::Push => WaitFor::Deposit,
            Direction::Pull => WaitFor::Merge,
        };
        status_request(self.uri.context(), &self.uri.exchange, &self.purse_pub, target, 0)
    }

    /// Verifies the state of the purse.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if the purse cannot be used any more, in plain words.
    pub fn read_status(
        self,
        exchange: &Exchange,
        response: &HttpResponse,
        now: Timestamp,
    ) -> Result<PeerPayment> {
        let gone = |reason: &str| bad_input("taler URI", reason);
        let status = match read_status(exchange, response, now)? {
            Seen::Current(status) => status,
            Seen::Expired => return Err(gone("the payment has expired")),
            Seen::Deleted => return Err(gone("the payment was taken back")),
            Seen::Unknown => return Err(gone("the exchange knows no such payment")),
        };
        Ok(PeerPayment {
            direction: self.uri.direction,
            exchange: self.uri.exchange,
            contract_priv: self.uri.contract_priv,
            purse_pub: self.purse_pub,
            merge_priv: self.merge_priv,
            balance: status.balance,
            is_merged: status.is_merged(),
            terms: self.terms,
        })
    }
}

/// A payment that somebody offers or requests.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerPayment {
    /// Whether it offers or requests money.
    pub direction: Direction,
    /// Base URL of the exchange.
    pub exchange: String,
    pub(crate) contract_priv: EcdhePrivateKey,
    pub(crate) purse_pub: EddsaPublicKey,
    /// Push: the merge key.
    pub(crate) merge_priv: Option<EddsaPrivateKey>,
    /// The amount in the purse.
    pub(crate) balance: Money,
    /// Whether the purse was merged into a reserve.
    pub is_merged: bool,
    /// The terms.
    pub terms: PurseTerms,
}

impl PeerPayment {
    /// Checks that money can be received or paid.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] with the reason.
    pub fn require_open(&self) -> Result<()> {
        let refuse = |reason: &str| Err(bad_input("taler URI", reason));
        match self.direction {
            Direction::Push if self.is_merged => refuse("somebody has accepted this payment already"),
            Direction::Push if !is_full(&self.terms, self.balance) => {
                refuse("the sender has not paid the whole amount")
            }
            Direction::Pull if is_full(&self.terms, self.balance) => {
                refuse("somebody has paid this request already")
            }
            // Paid money would not reach anybody.
            Direction::Pull if !self.is_merged => refuse("nobody would receive the money"),
            Direction::Push | Direction::Pull => Ok(()),
        }
    }

    /// The operation by which this wallet has accepted it, unless that failed.
    #[must_use]
    pub fn known(&self, state: &WalletState) -> Option<OpId> {
        let is_same = |kind: &OpKind| match (self.direction, kind) {
            (Direction::Push, OpKind::PurseIncome(record)) => {
                record.purse_pub == self.purse_pub && record.stage != super::IncomeStage::Failed
            }
            (Direction::Pull, OpKind::PursePayment(record)) => {
                record.purse_pub == self.purse_pub && record.stage != super::PayStage::Failed
            }
            _ => false,
        };
        state.operations.values().find(|operation| is_same(&operation.kind)).map(|operation| operation.id)
    }
}
