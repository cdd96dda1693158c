//! Statuses and refusals: the answer to each refusal of the rules, with the evidence that the protocol
//! demands.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_engine::SubmitError;
use batzen_http::Response;
use batzen_protocol::ErrorCode;
use batzen_protocol::api::errors::{
    CoinConflict, DenominationUnknown, DenominationUnusable, EncryptedContractConflict, InsufficientReserve,
    KycRequired, PurseCreateConflict, PurseDepositConflict, PurseMergeConflict,
};
use batzen_protocol::signatures::{
    ExchangeAffirmDenomExpired, ExchangeAffirmDenomUnknown, OperationName, SignedMessage,
};
use batzen_store::StoreError;
use batzen_tables::exchange::PaytoHash;
use serde::Serialize;

use super::check::Checked;
use super::histories::{self, coin_items, reserve_items};
use super::signing::sign_messages;
use super::{FAILURES, error, error_status};
use crate::app::Exchange;
use crate::keys::KeyState;
use crate::rules::kyc::requirement_number;
use crate::rules::{self, ConflictReason, DenomProblem, Refusal, RequireKyc, TypedCommand};

/// The operation that a signed error answer about a denomination names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DenomOperation {
    /// Withdraw and batch withdraw.
    Withdraw,
    /// The first message of a Clause Blind Schnorr withdrawal.
    CsrWithdraw,
    /// Deposit and batch deposit.
    Deposit,
    /// Refund: never signed, refunds have no window.
    Refund,
    Melt,
    /// The first message of a refresh with Clause Blind Schnorr coins.
    CsrMelt,
    Reveal,
    Recoup,
    RecoupRefresh,
    /// Coins for a purse or a reserve.
    Purse,
    /// A reserve's purse: never signed, like the rest.
    ReservePurse,
    PurseMerge,
    PurseDelete,
    /// Prolonging a reserve; its coins are named like those of purses.
    ReserveOpen,
    /// Closing a reserve by order of its owner.
    ReserveClose,
    /// Full reserve history: never signed, it concerns no denomination.
    History,
}

/// The detail for an amount that is zero or below its fee.
const ABOVE_ZERO_AND_FEE: &str = "the amount must be above zero and not below the fee";

impl DenomOperation {
    fn name(self) -> &'static str {
        match self {
            Self::Withdraw => "WITHDRAW",
            Self::CsrWithdraw => "csr-withdraw",
            Self::Deposit => "DEPOSIT",
            Self::Refund => "REFUND",
            Self::Melt => "MELT",
            Self::CsrMelt => "csr-melt",
            Self::Reveal => "REVEAL",
            Self::Recoup => "RECOUP",
            Self::RecoupRefresh => "RECOUP-REFRESH",
            Self::Purse | Self::ReservePurse | Self::ReserveOpen => "PURSE CREATE",
            Self::PurseMerge => "PURSE MERGE",
            Self::PurseDelete => "PURSE DELETE",
            Self::ReserveClose => "RESERVE CLOSE",
            Self::History => "HISTORY",
        }
    }
}

/// An error answer with further members.
pub(crate) fn error_extra(code: ErrorCode, extra: &impl Serialize) -> Response {
    Response::error_with(code, None, "", extra)
}

/// A future that few requests need. It is made in its own stack frame and kept in its own memory, so that the
/// futures of the other requests stay small: each is moved to its place when it begins.
#[cold]
#[inline(never)]
pub(super) fn aside<'a, F: Future + Send + 'a>(
    make: impl FnOnce() -> F,
) -> Pin<Box<dyn Future<Output = F::Output> + Send + 'a>> {
    Box::pin(make())
}

// --- Failures of the service
// ---------------------------------------------------------------------------------------

/// The answer when the store failed.
pub(super) fn store(failure: StoreError) -> Response {
    FAILURES.store(&failure)
}

// --- Signed answers about denominations
// ------------------------------------------------------------------------------

/// Signs an answer with a key state's online key.
async fn sign_answer(
    app: &Exchange,
    keys: &KeyState,
    message: &impl SignedMessage,
) -> Checked<(EddsaPublicKey, EddsaSignature)> {
    let message = message.message().as_ref().into();
    let (exchange_pub, signatures) = sign_messages(app, keys, vec![message])?.await?;
    Ok((exchange_pub, signatures[0]))
}

async fn affirm_unknown(
    app: &Exchange,
    keys: &KeyState,
    h_denom_pub: &HashCode,
    code: ErrorCode,
) -> Response {
    let timestamp = app.core.now();
    let message = ExchangeAffirmDenomUnknown { timestamp, h_denom_pub: *h_denom_pub };
    match sign_answer(app, keys, &message).await {
        Ok((exchange_pub, exchange_sig)) => {
            let proof =
                DenominationUnknown { timestamp, h_denom_pub: *h_denom_pub, exchange_pub, exchange_sig };
            error_extra(code, &proof)
        }
        Err(answer) => answer,
    }
}

/// 404: the exchange's signed statement that it does not know the denomination.
pub(crate) async fn denomination_unknown(
    app: &Exchange,
    keys: &KeyState,
    h_denom_pub: &HashCode,
) -> Response {
    let code = ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN;
    aside(|| affirm_unknown(app, keys, h_denom_pub, code)).await
}

/// 404: the denomination's cipher does not have this operation.
pub(crate) async fn wrong_cipher(app: &Exchange, keys: &KeyState, h_denom_pub: &HashCode) -> Response {
    let code = ErrorCode::EXCHANGE_GENERIC_INVALID_DENOMINATION_CIPHER_FOR_OPERATION;
    aside(|| affirm_unknown(app, keys, h_denom_pub, code)).await
}

/// 410: the exchange's signed statement that the denomination is not usable for this operation now.
pub(crate) async fn denomination_unusable(
    app: &Exchange,
    keys: &KeyState,
    h_denom_pub: &HashCode,
    operation: DenomOperation,
    code: ErrorCode,
) -> Response {
    aside(|| affirm_unusable(app, keys, h_denom_pub, operation, code)).await
}

async fn affirm_unusable(
    app: &Exchange,
    keys: &KeyState,
    h_denom_pub: &HashCode,
    operation: DenomOperation,
    code: ErrorCode,
) -> Response {
    let timestamp = app.core.now();
    let message = ExchangeAffirmDenomExpired {
        timestamp,
        operation: OperationName::new(operation.name()),
        h_denom_pub: *h_denom_pub,
    };
    match sign_answer(app, keys, &message).await {
        Ok((exchange_pub, exchange_sig)) => {
            let proof = DenominationUnusable {
                oper: operation.name().to_owned(),
                timestamp,
                h_denom_pub: *h_denom_pub,
                exchange_pub,
                exchange_sig,
            };
            Response::error_with(code, Some(410), "", &proof)
        }
        Err(answer) => answer,
    }
}

// --- Refusals of the rules
// --------------------------------------------------------------------------------------------

impl Exchange {
    /// Submits a command and waits for its decision. `batch`: the request is a batch call, some of whose
    /// errors have another status.
    ///
    /// # Errors
    /// The answer to give.
    pub(super) async fn decide<C: TypedCommand>(
        &self,
        keys: &Arc<KeyState>,
        operation: DenomOperation,
        command: C,
        batch: bool,
    ) -> Checked<C::Answer> {
        outcome_or_response(self, keys, operation, self.core.submit(command).await, batch).await
    }
}

/// The outcome of a submitted command, or the error answer. `batch`: as for [`Exchange::decide`].
///
/// # Errors
/// The answer to give.
pub(crate) async fn outcome_or_response<T>(
    app: &Exchange,
    keys: &Arc<KeyState>,
    operation: DenomOperation,
    verdict: Result<Result<T, Refusal>, SubmitError>,
    batch: bool,
) -> Checked<T> {
    match verdict {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(refusal)) => Err(aside(|| refused(app, keys, operation, refusal, batch)).await),
        Err(failure) => Err(FAILURES.submit(&failure)),
    }
}

async fn refused(
    app: &Exchange,
    keys: &Arc<KeyState>,
    operation: DenomOperation,
    refusal: Refusal,
    batch: bool,
) -> Response {
    use ErrorCode as Code;
    let plain = |code| error(code, "");
    match refusal {
        Refusal::ReserveUnknown if operation == DenomOperation::History => {
            plain(Code::EXCHANGE_RESERVES_STATUS_UNKNOWN)
        }
        Refusal::ReserveUnknown => plain(Code::EXCHANGE_GENERIC_RESERVE_UNKNOWN),
        Refusal::ReserveInsufficient(shortage) => {
            let code = if operation == DenomOperation::ReserveOpen {
                Code::EXCHANGE_RESERVES_OPEN_INSUFFICIENT_FUNDS
            } else {
                Code::EXCHANGE_WITHDRAW_INSUFFICIENT_FUNDS
            };
            reserve_insufficient(app, keys, code, shortage).await.unwrap_or_else(|answer| answer)
        }
        Refusal::HistoryUnaffordable => plain(Code::EXCHANGE_GET_RESERVE_HISTORY_ERROR_INSUFFICIENT_BALANCE),
        Refusal::PlanchetsMixed { .. } => plain(Code::EXCHANGE_WITHDRAW_BATCH_IDEMPOTENT_PLANCHET),
        Refusal::PlanchetDuplicate { .. } => error(Code::GENERIC_PARAMETER_MALFORMED, "duplicate planchet"),
        Refusal::NonceReuse { .. } => {
            error_status(Code::EXCHANGE_WITHDRAW_NONCE_REUSE, if batch { 400 } else { 409 }, "")
        }
        // The API looked them up before; a serial that has gone since belongs to no denomination any more.
        Refusal::DenominationUnknown { .. } => plain(Code::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN),
        Refusal::DenominationUnusable { denom, problem, .. } => {
            let code = match (problem, operation) {
                (DenomProblem::Future, _) => Code::EXCHANGE_GENERIC_DENOMINATION_VALIDITY_IN_FUTURE,
                (DenomProblem::Expired, _) => Code::EXCHANGE_GENERIC_DENOMINATION_EXPIRED,
                (DenomProblem::Revoked, _) => Code::EXCHANGE_GENERIC_DENOMINATION_REVOKED,
                (DenomProblem::NotRevoked, DenomOperation::RecoupRefresh) => {
                    Code::EXCHANGE_RECOUP_REFRESH_NOT_ELIGIBLE
                }
                (DenomProblem::NotRevoked, _) => Code::EXCHANGE_RECOUP_NOT_ELIGIBLE,
            };
            match keys.find_denomination_by_serial(denom) {
                Some(denom) => denomination_unusable(app, keys, &denom.h_denom_pub, operation, code).await,
                None => plain(Code::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN),
            }
        }
        Refusal::CoinConflict { conflict, .. } => {
            coin_conflict(app, keys, conflict).await.unwrap_or_else(|answer| answer)
        }
        Refusal::CoinDuplicate { .. } => {
            error(Code::GENERIC_PARAMETER_MALFORMED, "coins: the same coin twice")
        }
        Refusal::ContributionBelowFee { .. } => {
            error(Code::EXCHANGE_DEPOSIT_NEGATIVE_VALUE_AFTER_FEE, ABOVE_ZERO_AND_FEE)
        }
        Refusal::ContributionAboveValue { .. } => {
            plain(Code::EXCHANGE_GENERIC_AMOUNT_EXCEEDS_DENOMINATION_VALUE)
        }
        Refusal::DeadlinesImpossible => plain(Code::EXCHANGE_DEPOSIT_REFUND_DEADLINE_AFTER_WIRE_DEADLINE),
        Refusal::CoinUnknown => plain(Code::EXCHANGE_REFUND_COIN_NOT_FOUND),
        Refusal::DepositUnknown => plain(Code::EXCHANGE_REFUND_DEPOSIT_NOT_FOUND),
        Refusal::DepositPaid => plain(Code::EXCHANGE_REFUND_MERCHANT_ALREADY_PAID),
        Refusal::RefundBelowFee => error(Code::EXCHANGE_REFUND_FEE_ABOVE_AMOUNT, ABOVE_ZERO_AND_FEE),
        Refusal::MeltBelowFee => error(Code::EXCHANGE_MELT_FEES_EXCEED_CONTRIBUTION, ABOVE_ZERO_AND_FEE),
        Refusal::MeltNoZombie => plain(Code::EXCHANGE_MELT_COIN_EXPIRED_NO_ZOMBIE),
        // A commitment covers its coin, so this melt is unknown to the client.
        Refusal::RcTaken => error(Code::GENERIC_PARAMETER_MALFORMED, "rc"),
        Refusal::MeltUnknown => plain(Code::EXCHANGE_REFRESHES_REVEAL_SESSION_UNKNOWN),
        Refusal::RmsMissing => error(Code::GENERIC_PARAMETER_MISSING, "rms"),
        Refusal::RevealCostTooHigh { .. } => plain(Code::EXCHANGE_REFRESHES_REVEAL_AMOUNT_INSUFFICIENT),
        Refusal::PlanchetUnknown if operation == DenomOperation::RecoupRefresh => {
            plain(Code::EXCHANGE_RECOUP_REFRESH_MELT_NOT_FOUND)
        }
        Refusal::PlanchetUnknown => plain(Code::EXCHANGE_RECOUP_WITHDRAW_NOT_FOUND),
        Refusal::Overflow if operation == DenomOperation::Withdraw => {
            plain(Code::EXCHANGE_WITHDRAW_AMOUNT_FEE_OVERFLOW)
        }
        Refusal::Overflow if operation == DenomOperation::Reveal => {
            plain(Code::EXCHANGE_REFRESHES_REVEAL_COST_CALCULATION_OVERFLOW)
        }
        Refusal::PurseUnknown => plain(Code::EXCHANGE_GENERIC_PURSE_UNKNOWN),
        Refusal::PurseExpired => plain(Code::EXCHANGE_GENERIC_PURSE_EXPIRED),
        Refusal::PurseTooLate if operation == DenomOperation::ReservePurse => {
            plain(Code::EXCHANGE_RESERVES_PURSE_EXPIRATION_BEFORE_NOW)
        }
        Refusal::PurseTooLate => plain(Code::EXCHANGE_PURSE_CREATE_EXPIRATION_BEFORE_NOW),
        Refusal::PurseFeeTooLow(fee) if operation == DenomOperation::ReservePurse => {
            error(Code::EXCHANGE_RESERVES_PURSE_FEE_TOO_LOW, &fee.of(app.core.config.currency).to_string())
        }
        Refusal::PurseFeeTooLow(_) => plain(Code::EXCHANGE_CREATE_PURSE_NEGATIVE_VALUE_AFTER_FEE),
        Refusal::PurseDeleted => plain(Code::EXCHANGE_GENERIC_PURSE_DELETED),
        Refusal::PurseDecided if operation == DenomOperation::PurseDelete => {
            plain(Code::EXCHANGE_PURSE_DELETE_ALREADY_DECIDED)
        }
        Refusal::PurseDecided => plain(Code::EXCHANGE_PURSE_DEPOSIT_DECIDED_ALREADY),
        Refusal::PurseNotFull => plain(Code::EXCHANGE_PURSE_NOT_FULL),
        Refusal::PurseCoinsTooMany => {
            error(Code::GENERIC_PARAMETER_MALFORMED, &format!("deposits: {}", Refusal::PurseCoinsTooMany))
        }
        Refusal::PurseConflict(purse) => {
            let code = if operation == DenomOperation::ReservePurse {
                Code::EXCHANGE_RESERVES_PURSE_CREATE_CONFLICTING_META_DATA
            } else {
                Code::EXCHANGE_PURSE_CREATE_CONFLICTING_META_DATA
            };
            let stored = PurseCreateConflict {
                amount: purse.target.of(app.core.config.currency),
                min_age: purse.min_age,
                purse_expiration: purse.expiration,
                purse_sig: purse.purse_sig,
                h_contract_terms: purse.h_contract_terms,
                merge_pub: purse.merge_pub,
            };
            error_extra(code, &stored)
        }
        Refusal::PurseMergeConflict(merge) => {
            // All reserves are at this exchange. A merge does not say so, the creation by a reserve does.
            let names_exchange = operation != DenomOperation::PurseMerge;
            let stored = PurseMergeConflict {
                merge_timestamp: merge.merge_time,
                merge_sig: merge.merge_sig,
                partner_url: names_exchange.then(|| app.core.config.base_url.clone()),
                reserve_pub: merge.reserve_pub,
            };
            error_extra(Code::EXCHANGE_RESERVES_PURSE_MERGE_CONFLICTING_META_DATA, &stored)
        }
        Refusal::PurseDepositConflict { coin_pub, h_age, deposit } => {
            let Some(denom) = keys.find_denomination_by_serial(deposit.denom) else {
                return error(Code::GENERIC_DB_INVARIANT_FAILURE, "denomination of a coin");
            };
            let stored = PurseDepositConflict {
                coin_pub,
                coin_sig: deposit.coin_sig,
                h_denom_pub: denom.h_denom_pub,
                h_age_commitment: h_age,
                h_age_restrictions: h_age,
                partner_url: None,
                amount: deposit.amount.of(app.core.config.currency),
            };
            error_extra(Code::EXCHANGE_PURSE_DEPOSIT_CONFLICTING_META_DATA, &stored)
        }
        Refusal::ContractConflict(contract) => {
            let stored = EncryptedContractConflict {
                h_econtract: batzen_crypto::hash::sha512(&contract.econtract),
                econtract_sig: contract.econtract_sig,
                contract_pub: contract.contract_pub,
            };
            error_extra(Code::EXCHANGE_PURSE_ECONTRACT_CONFLICTING_META_DATA, &stored)
        }
        // Others keep changing it.
        Refusal::PurseChanged => FAILURES.busy(),
        Refusal::PurseUnaffordable => plain(Code::EXCHANGE_RESERVES_PURSE_CREATE_INSUFFICIENT_FUNDS),
        Refusal::PurseLifeTooLong(_) => error(Code::GENERIC_PARAMETER_MALFORMED, &refusal.to_string()),
        Refusal::PurchaseTooLarge => error(Code::GENERIC_PARAMETER_MALFORMED, "purse_limit"),
        Refusal::CloseTargetUnknown => plain(Code::EXCHANGE_RESERVES_CLOSE_NO_TARGET_ACCOUNT),
        // Only the withdraw handler submits unsigned planchets. It handles this refusal itself.
        Refusal::KycRequired { h_payto, checks } => kyc_required(app, h_payto, checks).await,
        // The first money from a bank account arrived in between, as often as was tried.
        Refusal::OriginOther => FAILURES.busy(),
        Refusal::KycProcessUnknown => plain(Code::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN),
        Refusal::KycWaits => error(Code::EXCHANGE_KYC_FORM_ALREADY_UPLOADED, &Refusal::KycWaits.to_string()),

        Refusal::SignatureMissing
        | Refusal::KycChanged
        | Refusal::KycSameOfficer
        | Refusal::RecoupAboveValue
        | Refusal::OpenTooLittle { .. }
        | Refusal::WireFeeMissing
        | Refusal::TargetMismatch
        | Refusal::TransientOther
        | Refusal::ArchiveRunOther
        | Refusal::ArchiveTooYoung
        | Refusal::TransferUnknown
        | Refusal::WtidTaken
        | Refusal::Overflow
        | Refusal::Management(_) => {
            tracing::error!(%refusal, "refusal that no request should meet");
            plain(Code::GENERIC_INTERNAL_INVARIANT_FAILURE)
        }
    }
}

/// Stores a requirement, and the answer that names it (API chapter 1.10).
pub(crate) async fn kyc_required(app: &Exchange, h_payto: PaytoHash, checks: String) -> Response {
    app.core.metrics.kyc.required.inc();
    let row = requirement_number(app.core.random());
    match app.core.submit(RequireKyc { h_payto, checks, row }).await {
        Ok(Ok(requirement)) => error_extra(
            ErrorCode::EXCHANGE_GENERIC_KYC_REQUIRED,
            &KycRequired { h_payto, requirement_row: requirement.row },
        ),
        // The rules refuse no requirement.
        Ok(Err(_)) => error(ErrorCode::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, ""),
        Err(failure) => FAILURES.submit(&failure),
    }
}

async fn reserve_insufficient(
    app: &Exchange,
    keys: &Arc<KeyState>,
    code: ErrorCode,
    shortage: Box<rules::ReserveShortage>,
) -> Checked<Response> {
    let currency = app.core.config.currency;
    let reserve_pub = shortage.reserve_pub;
    let known = Arc::clone(keys);
    let events = shortage.history.items.len();
    histories::with_history(app, keys, reserve_pub.as_bytes(), events, move |proofs| {
        let extra = InsufficientReserve {
            balance: shortage.balance.of(currency),
            requested_amount: shortage.requested.of(currency),
            history: reserve_items(currency, &known, reserve_pub, &shortage.history.items, proofs)?,
        };
        Ok(error_extra(code, &extra))
    })
    .await
}

async fn coin_conflict(
    app: &Exchange,
    keys: &Arc<KeyState>,
    conflict: Box<rules::CoinConflict>,
) -> Checked<Response> {
    use ErrorCode as Code;
    let code = match conflict.reason {
        ConflictReason::Insufficient { .. } => Code::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS,
        ConflictReason::OtherDenomination => Code::EXCHANGE_GENERIC_COIN_CONFLICTING_DENOMINATION_KEY,
        ConflictReason::OtherAgeCommitment => Code::EXCHANGE_GENERIC_COIN_CONFLICTING_AGE_HASH,
        ConflictReason::OtherDeposit => Code::EXCHANGE_DEPOSIT_CONFLICTING_CONTRACT,
        ConflictReason::RefundAboveDeposit { .. } => Code::EXCHANGE_REFUND_CONFLICT_DEPOSIT_INSUFFICIENT,
        ConflictReason::RefundOtherAmount => Code::EXCHANGE_REFUND_INCONSISTENT_AMOUNT,
    };
    let Some(denom) = keys.find_denomination_by_serial(conflict.history.denom) else {
        return Err(error(ErrorCode::GENERIC_DB_INVARIANT_FAILURE, "denomination of a coin"));
    };
    let (currency, h_denom_pub) = (app.core.config.currency, denom.h_denom_pub);
    let coin_pub = conflict.coin_pub;
    let base_url = app.core.config.base_url.clone();
    let events = conflict.history.items.len();
    histories::with_history(app, keys, coin_pub.as_bytes(), events, move |proofs| {
        let history = coin_items(currency, &base_url, &conflict.history, proofs);
        Ok(error_extra(code, &CoinConflict { coin_pub, h_denom_pub, history }))
    })
    .await
}
