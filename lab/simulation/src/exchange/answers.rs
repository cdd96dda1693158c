//! Turns verdicts into answers: bodies, confirmations, errors.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_exchange::rules::{Answer, ConflictReason, DenomProblem, Refusal};
use batzen_protocol::api::errors::DenominationUnusable;
use batzen_protocol::api::exchange::{
    BatchDepositConfirmation, BlindSignature, BlindSignatures, ConfirmationSignature, DepositConfirmation,
    MeltConfirmation, RefundConfirmation,
};
use batzen_protocol::signatures::{
    ExchangeAffirmDenomExpired, ExchangeConfirmDeposit, ExchangeConfirmMelt, ExchangeConfirmRefund,
    OperationName, SignedMessage,
};
use batzen_protocol::{Amount, ErrorBody, ErrorCode, Timestamp};
use batzen_store::StoreError;
use batzen_tables::exchange::RefundKey;
use batzen_wallet::core::http::HttpResponse;
use serde::Serialize;
use serde_json::{Value, json};

use crate::keys::{Keys, currency};
use crate::marks::Marks;

/// The data for the answer to a command, in addition to its outcome.
pub enum Pending {
    /// Coins from a reserve.
    Withdraw {
        /// Whether the request was a batch.
        batch: bool,
    },
    /// A payment.
    Deposit {
        /// The coins in the order of the request.
        coin_pubs: Vec<EddsaPublicKey>,
        /// Hash of the merchant's account.
        h_wire: HashCode,
        /// The contract.
        h_contract_terms: HashCode,
        /// The merchant.
        merchant_pub: EddsaPublicKey,
        /// The time until which refunds are possible.
        refund_deadline: Timestamp,
        /// Whether the request was a batch.
        batch: bool,
    },
    /// A melt.
    Melt {
        /// Its commitment.
        rc: HashCode,
    },
    /// A reveal.
    Reveal,
    /// A refund.
    Refund {
        /// The refund's key.
        key: RefundKey,
        /// The amount.
        amount: Amount,
    },
}

/// An answer with a body.
///
/// # Panics
/// Never: all protocol bodies can be written as JSON.
pub fn ok(body: &impl Serialize) -> HttpResponse {
    let body = serde_json::to_vec(body).expect("protocol bodies have a JSON form");
    HttpResponse { status: 200, body, ..HttpResponse::default() }
}

/// An error with the status of its code.
#[must_use]
pub fn error(code: u32) -> HttpResponse {
    error_with(code, None, json!({}))
}

fn error_with(code: u32, status: Option<u16>, extra: Value) -> HttpResponse {
    let code = ErrorCode::from_u32(code);
    let body = ErrorBody::with(code, extra);
    let status = status.unwrap_or_else(|| code.http_status());
    HttpResponse { status, ..ok(&body) }
}

/// The store could not be read or written, so it is unknown whether the request took effect.
#[must_use]
pub fn store_failed(error: &StoreError) -> HttpResponse {
    HttpResponse { status: 503, body: error.to_string().into_bytes(), ..HttpResponse::default() }
}

/// The signed answer that a denomination cannot be used now.
#[must_use]
pub fn unusable(code: u32, operation: &str, h_denom_pub: HashCode, timestamp: Timestamp) -> HttpResponse {
    let message =
        ExchangeAffirmDenomExpired { timestamp, operation: OperationName::new(operation), h_denom_pub };
    let signer = &Keys::get().signer;
    let proof = DenominationUnusable {
        oper: operation.to_owned(),
        timestamp,
        h_denom_pub,
        exchange_pub: signer.public_key(),
        exchange_sig: message.sign(signer),
    };
    let proof = serde_json::to_value(proof).unwrap_or_default();
    error_with(code, Some(410), proof)
}

impl Pending {
    /// The answer to an outcome.
    ///
    /// # Panics
    /// If the outcome belongs to another command.
    #[must_use]
    pub fn answer(self, outcome: Answer, marks: &mut Marks) -> HttpResponse {
        let signer = &Keys::get().signer;
        let exchange_pub = signer.public_key();
        let signatures =
            |ev_sigs: Vec<_>| ev_sigs.into_iter().map(|ev_sig| BlindSignature { ev_sig }).collect::<Vec<_>>();
        match (self, outcome) {
            (Self::Withdraw { batch }, Answer::Withdraw(withdrawn)) => {
                if withdrawn.repeated {
                    marks.meet("withdraw.repeated");
                }
                let mut ev_sigs = signatures(withdrawn.ev_sigs);
                if batch {
                    return ok(&BlindSignatures { ev_sigs });
                }
                ok(&ev_sigs.pop().expect("one signature a planchet"))
            }
            (Self::Reveal, Answer::Reveal(revealed)) => {
                if revealed.repeated {
                    marks.meet("reveal.repeated");
                }
                ok(&BlindSignatures { ev_sigs: signatures(revealed.ev_sigs) })
            }
            (
                Self::Deposit { coin_pubs, h_wire, h_contract_terms, merchant_pub, refund_deadline, batch },
                Answer::Deposit(deposited),
            ) => {
                if deposited.coins.iter().any(|coin| coin.repeated) {
                    marks.meet("deposit.repeated");
                }
                let exchange_timestamp = deposited.exchange_time;
                let confirm = |(coin, coin_pub): (&batzen_exchange::rules::DepositedCoin, _)| {
                    ExchangeConfirmDeposit {
                        h_contract_terms,
                        h_wire,
                        h_policy: HashCode::ZERO,
                        exchange_timestamp,
                        wire_deadline: coin.wire_deadline,
                        refund_deadline,
                        amount_without_fee: Amount::new(currency(), coin.amount_without_fee),
                        coin_pub,
                        merchant_pub,
                    }
                    .sign(signer)
                };
                let mut signatures: Vec<_> = deposited.coins.iter().zip(coin_pubs).map(confirm).collect();
                if batch {
                    let exchange_sigs = signatures
                        .into_iter()
                        .map(|exchange_sig| ConfirmationSignature { exchange_sig })
                        .collect();
                    return ok(&BatchDepositConfirmation { exchange_timestamp, exchange_pub, exchange_sigs });
                }
                let exchange_sig = signatures.pop().expect("one confirmation a coin");
                ok(&DepositConfirmation {
                    exchange_timestamp,
                    exchange_sig,
                    exchange_pub,
                    transaction_base_url: None,
                })
            }
            (Self::Melt { rc }, Answer::Melt(melted)) => {
                if melted.repeated {
                    marks.meet("melt.repeated");
                }
                let noreveal_index = u32::from(melted.noreveal_index);
                let message = ExchangeConfirmMelt { refresh_commitment: rc, noreveal_index };
                let exchange_sig = message.sign(signer);
                ok(&MeltConfirmation { noreveal_index, exchange_sig, exchange_pub, refresh_base_url: None })
            }
            (pending @ Self::Refund { .. }, Answer::Refund(refunded)) => {
                marks.meet(if refunded.repeated { "refund.repeated" } else { "refund.accepted" });
                pending.confirm_refund()
            }
            (_, outcome) => panic!("another command is answered: {outcome:?}"),
        }
    }

    /// The confirmation of a refund.
    ///
    /// # Panics
    /// If the outcome is not a refund.
    #[must_use]
    pub fn confirm_refund(self) -> HttpResponse {
        let Self::Refund { key, amount } = self else { panic!("a refund") };
        let signer = &Keys::get().signer;
        let message = ExchangeConfirmRefund {
            h_contract_terms: key.h_contract_terms,
            coin_pub: key.coin_pub,
            merchant_pub: key.merchant_pub,
            rtransaction_id: key.rtransaction_id,
            refund_amount: amount,
        };
        ok(&RefundConfirmation { exchange_sig: message.sign(signer), exchange_pub: signer.public_key() })
    }

    /// The answer to a refusal. Conflicts come without a history as proof, since honest wallets never get
    /// one.
    #[must_use]
    pub fn refuse(&self, refusal: &Refusal, now: Timestamp, marks: &mut Marks) -> HttpResponse {
        let operation = match self {
            Self::Withdraw { .. } => "WITHDRAW",
            Self::Deposit { .. } => "DEPOSIT",
            Self::Melt { .. } => "MELT",
            Self::Reveal => "REVEAL",
            Self::Refund { .. } => "REFUND",
        };
        let code = match refusal {
            Refusal::DenominationUnusable { denom, problem, .. } => {
                let h = Keys::get().by_serial(*denom).map_or(HashCode::ZERO, |denom| denom.h);
                let code = match problem {
                    DenomProblem::Future => 1008,
                    DenomProblem::Expired => 1009,
                    DenomProblem::Revoked | DenomProblem::NotRevoked => 1010,
                };
                return unusable(code, operation, h, now);
            }
            Refusal::CoinConflict { conflict, .. } => match conflict.reason {
                ConflictReason::Insufficient { .. } => {
                    marks.meet("deposit.refused_spent");
                    1012
                }
                ConflictReason::OtherDenomination => 1003,
                ConflictReason::OtherAgeCommitment => 1015,
                ConflictReason::OtherDeposit => 1206,
                ConflictReason::RefundAboveDeposit { .. } => 1501,
                ConflictReason::RefundOtherAmount => 1510,
            },
            Refusal::ReserveUnknown => 1027,
            Refusal::ReserveInsufficient(_) => 1150,
            Refusal::PlanchetsMixed { .. } => 1175,
            Refusal::NonceReuse { .. } => 1160,
            Refusal::DenominationUnknown { .. } => 1005,
            Refusal::ContributionBelowFee { .. } => 1207,
            Refusal::ContributionAboveValue { .. } => 1021,
            Refusal::DeadlinesImpossible => 1208,
            Refusal::CoinUnknown => 1500,
            Refusal::DepositUnknown => 1502,
            Refusal::DepositPaid => {
                marks.meet("refund.too_late");
                1503
            }
            Refusal::RefundBelowFee => 1505,
            Refusal::MeltBelowFee => 1302,
            Refusal::MeltNoZombie => 1305,
            Refusal::MeltUnknown => 1355,
            Refusal::RevealCostTooHigh { .. } => 1360,
            _ => 26,
        };
        error(code)
    }
}
