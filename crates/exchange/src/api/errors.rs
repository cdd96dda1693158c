//! Error answers with evidence, and the steps of a request that can fail for reasons of the service: the CPU pool, the
//! lane, the signing keys.

use std::future::Future;
use std::sync::Arc;

use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, BlindingSecret, Cipher, CsNonce, CsOperation, EddsaPublicKey,
    EddsaSignature, ExchangeWithdrawValues, HashCode,
};
use batzen_engine::{EngineError, PoolBusy};
use batzen_http::Response;
use batzen_protocol::api::errors::{
    CoinConflict, DenominationUnknown, DenominationUnusable, InsufficientReserve,
};
use batzen_protocol::api::exchange as bodies;
use batzen_protocol::payto::h_wire;
use batzen_protocol::signatures::{
    ExchangeAffirmDenomExpired, ExchangeAffirmDenomUnknown, ExchangeConfirmRecoup,
    ExchangeConfirmRecoupRefresh, ExchangeReserveClosed, Operation as OperationName, SignedMessage,
};
use batzen_protocol::{Amount, Currency, ErrorCode, Money, Timestamp};
use batzen_signer::client::Unavailable;
use batzen_store::StoreError;
use batzen_tables::exchange::{BlindSignature, DenomSerial, ReservePub};
use serde::Serialize;

use super::check::Checked;
use super::{engine_error, error, error_status, overloaded, store_error};
use crate::crypto::{Check, Opening};
use crate::keys::{KeyState, NoSigningKey, NotSigned};
use crate::rules::{
    self, CoinHistory, CoinHistoryItem, ConflictReason, DenomProblem, Outcome, Refusal, ReserveHistoryItem,
};
use crate::service::Exchange;

/// What a denomination was wanted for, as signed error answers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Withdraw and batch withdraw.
    Withdraw,
    /// The first message of a Clause Blind Schnorr withdrawal.
    CsrWithdraw,
    /// Deposit and batch deposit.
    Deposit,
    /// Refund: never signed, refunds have no window.
    Refund,
    /// Melt.
    Melt,
    /// The first message of a refresh with Clause Blind Schnorr coins.
    CsrMelt,
    /// Reveal.
    Reveal,
    /// Recoup.
    Recoup,
    /// Recoup-refresh.
    RecoupRefresh,
    /// Full reserve history: never signed, it concerns no denomination.
    History,
}

/// Said of an amount that pays nothing, or less than its fee.
const ABOVE_ZERO_AND_FEE: &str = "the amount must be above zero and not below the fee";

impl Operation {
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
            Self::History => "HISTORY",
        }
    }
}

/// Whole seconds, as times go over the wire and into signatures.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    time.as_secs().map_or(Timestamp::NEVER, Timestamp::from_secs)
}

/// An error answer with further members.
pub fn error_extra(code: ErrorCode, extra: &impl Serialize) -> Response {
    Response::error_with(code, None, "", extra)
}

// --- Failures of the service ---------------------------------------------------------------------------------------

/// The answer when the store failed.
pub fn store(failure: StoreError) -> Response {
    store_error(&failure)
}

/// Runs cryptography on the CPU pool.
///
/// # Errors
/// 503 when too much is waiting.
pub async fn on_pool<T: Send + 'static>(
    app: &Exchange,
    job: impl FnOnce() -> T + Send + 'static,
) -> Checked<T> {
    app.pool.run(job).await.map_err(busy)
}

fn busy(_: PoolBusy) -> Response {
    overloaded()
}

/// Checks signatures on the CPU pool, together with those of other requests. The verdicts stand in the order of the
/// arguments.
///
/// # Errors
/// 503 when too much is waiting.
pub async fn checked(app: &Exchange, checks: Vec<Check>) -> Checked<Vec<bool>> {
    for check in &checks {
        match check {
            Check::Coin { denom_pub, .. } => match denom_pub.cipher() {
                Cipher::Rsa => app.metrics.verifications.rsa.inc(),
                Cipher::Cs => app.metrics.verifications.cs.inc(),
            },
            Check::Eddsa { .. } => app.metrics.verifications.eddsa.inc(),
        }
    }
    app.crypto.checks.run(checks).await.map_err(busy)
}

/// The commitment that follows from an opened refresh, computed on the CPU pool together with those of other requests. None
/// if the derivation fails.
///
/// # Errors
/// 503 when too much is waiting.
pub async fn commitment(app: &Exchange, opening: Arc<Opening>) -> Checked<Option<HashCode>> {
    app.crypto.openings.run_one(opening).await.map_err(busy)
}

/// Whether one message is signed, see [`checked`].
///
/// # Errors
/// As [`checked`].
pub async fn is_signed(
    app: &Exchange,
    public: EddsaPublicKey,
    message: &impl SignedMessage,
    signature: EddsaSignature,
) -> Checked<bool> {
    Ok(checked(app, vec![Check::eddsa(public, message, signature)]).await? == [true])
}

/// The answer when nobody could sign: too much waits, or no signer answers. Clients come again.
fn unavailable(reason: Unavailable) -> Response {
    match reason {
        Unavailable::Busy => overloaded(),
        Unavailable::NoSigner => {
            let code = ErrorCode::EXCHANGE_DENOMINATION_HELPER_UNAVAILABLE;
            error_status(code, 503, "no signer answers").with_header(batzen_http::header::RETRY_AFTER, "1")
        }
    }
}

/// Signs planchets blindly.
///
/// # Errors
/// When a private key is not there or a planchet is not one.
pub async fn blind_sign(
    app: &Exchange,
    keys: &KeyState,
    items: Vec<(DenomSerial, BlindedPlanchet, CsOperation)>,
) -> Checked<Vec<BlindSignature>> {
    let order = |(serial, planchet, operation)| keys.signer().order(serial, planchet, operation);
    let orders = items.into_iter().map(order).collect::<Result<Vec<_>, _>>().map_err(not_signed)?;
    let results = app.custody.blind_sign(orders).await.map_err(unavailable)?;
    for signature in results.iter().flatten() {
        match signature {
            BlindedDenomSignature::Rsa(_) => app.metrics.signatures.rsa.inc(),
            BlindedDenomSignature::Cs(_) => app.metrics.signatures.cs.inc(),
        }
    }
    results.into_iter().map(|result| result.map_err(not_signed)).collect()
}

/// The values that wallets need before they can blind coins, each for a denomination and a nonce.
///
/// # Errors
/// When a private key is not there, or too much is waiting.
pub async fn withdraw_values(
    app: &Exchange,
    keys: &KeyState,
    items: Vec<(DenomSerial, CsNonce)>,
    operation: CsOperation,
) -> Checked<Vec<ExchangeWithdrawValues>> {
    let order = |(serial, nonce)| keys.signer().order_values(serial, nonce, operation);
    let orders = items.into_iter().map(order).collect::<Result<Vec<_>, _>>().map_err(not_signed)?;
    let values = app.custody.values(orders).await.map_err(unavailable)?;
    values.into_iter().map(|value| value.map_err(not_signed)).collect()
}

/// The answer when a private key is missing or what was to be signed is no planchet.
pub fn not_signed(fault: NotSigned) -> Response {
    let code = match fault {
        NotSigned::KeyUnavailable => ErrorCode::EXCHANGE_DENOMINATION_HELPER_UNAVAILABLE,
        NotSigned::Planchet(_) => ErrorCode::GENERIC_PARAMETER_MALFORMED,
        NotSigned::Failed(_) => ErrorCode::EXCHANGE_DENOMINATION_HELPER_BUG,
    };
    error(code, &fault.to_string())
}

fn no_signing_key(fault: NoSigningKey) -> Response {
    error(fault.code(), "")
}

/// Signs confirmations with the present online key, all with the same key.
///
/// # Errors
/// When there is no usable signing key, or too much is waiting.
pub async fn sign_online<M: SignedMessage>(
    app: &Exchange,
    messages: &[M],
) -> Checked<(EddsaPublicKey, Vec<EddsaSignature>)> {
    let keys = app.keys();
    let messages = messages.iter().map(|message| message.message().as_ref().into()).collect();
    sign_messages(app, &keys, messages)?.await
}

/// Signs messages with a key state's online key.
fn sign_messages(
    app: &Exchange,
    keys: &KeyState,
    messages: Vec<Box<[u8]>>,
) -> Checked<impl Future<Output = Checked<(EddsaPublicKey, Vec<EddsaSignature>)>> + Send + use<>> {
    let key = keys.online_key().map_err(no_signing_key)?;
    app.metrics.signatures.eddsa.add(messages.len() as u64);
    let exchange_pub = key.public_key();
    let signed = app.custody.sign(key, messages).map_err(unavailable)?;
    Ok(async move { Ok((exchange_pub, signed.await.map_err(unavailable)?)) })
}

/// [`sign_online`] for one confirmation.
///
/// # Errors
/// As [`sign_online`].
pub async fn sign_one<M: SignedMessage>(
    app: &Exchange,
    message: M,
) -> Checked<(EddsaPublicKey, EddsaSignature)> {
    let (exchange_pub, signatures) = sign_online(app, &[message]).await?;
    Ok((exchange_pub, signatures[0]))
}

// --- Signed answers about denominations ------------------------------------------------------------------------------

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
    let timestamp = whole_seconds(app.now());
    let message = ExchangeAffirmDenomUnknown { timestamp, h_denom_pub: *h_denom_pub };
    match Box::pin(sign_answer(app, keys, &message)).await {
        Ok((exchange_pub, exchange_sig)) => {
            let proof =
                DenominationUnknown { timestamp, h_denom_pub: *h_denom_pub, exchange_pub, exchange_sig };
            error_extra(code, &proof)
        }
        Err(answer) => answer,
    }
}

/// 404: the exchange affirms that it does not know the denomination.
pub async fn denomination_unknown(app: &Exchange, keys: &KeyState, h_denom_pub: &HashCode) -> Response {
    affirm_unknown(app, keys, h_denom_pub, ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN).await
}

/// 404: the denomination's cipher does not have this operation.
pub async fn wrong_cipher(app: &Exchange, keys: &KeyState, h_denom_pub: &HashCode) -> Response {
    let code = ErrorCode::EXCHANGE_GENERIC_INVALID_DENOMINATION_CIPHER_FOR_OPERATION;
    affirm_unknown(app, keys, h_denom_pub, code).await
}

/// 410: the exchange affirms that the denomination is not usable for this now.
pub async fn denomination_unusable(
    app: &Exchange,
    keys: &KeyState,
    h_denom_pub: &HashCode,
    operation: Operation,
    code: ErrorCode,
) -> Response {
    let timestamp = whole_seconds(app.now());
    let message = ExchangeAffirmDenomExpired {
        timestamp,
        operation: OperationName::new(operation.name()),
        h_denom_pub: *h_denom_pub,
    };
    match Box::pin(sign_answer(app, keys, &message)).await {
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

// --- Refusals of the rules --------------------------------------------------------------------------------------------

/// The outcome of a submitted command, or the answer that says why there is none. `batch`: the request was one of the
/// batch calls, some of whose errors have another status.
///
/// # Errors
/// The answer to give.
pub async fn decided(
    app: &Exchange,
    keys: &KeyState,
    operation: Operation,
    verdict: Result<Result<Outcome, Refusal>, EngineError>,
    batch: bool,
) -> Checked<Outcome> {
    match verdict {
        Ok(Ok(outcome)) => Ok(outcome),
        // Apart from the request's own state, which is small as long as all goes well.
        Ok(Err(refusal)) => Err(Box::pin(refused(app, keys, operation, refusal, batch)).await),
        Err(failure) => Err(engine_error(&failure)),
    }
}

async fn refused(
    app: &Exchange,
    keys: &KeyState,
    operation: Operation,
    refusal: Refusal,
    batch: bool,
) -> Response {
    use ErrorCode as Code;
    let plain = |code| error(code, "");
    match refusal {
        Refusal::ReserveUnknown if operation == Operation::History => {
            plain(Code::EXCHANGE_RESERVES_STATUS_UNKNOWN)
        }
        Refusal::ReserveUnknown => plain(Code::EXCHANGE_GENERIC_RESERVE_UNKNOWN),
        Refusal::ReserveInsufficient(shortage) => reserve_insufficient(app, keys, &shortage).await,
        Refusal::HistoryUnaffordable => plain(Code::EXCHANGE_GET_RESERVE_HISTORY_ERROR_INSUFFICIENT_BALANCE),
        Refusal::PlanchetsMixed { .. } => plain(Code::EXCHANGE_WITHDRAW_BATCH_IDEMPOTENT_PLANCHET),
        Refusal::PlanchetDuplicate { .. } => error(Code::GENERIC_PARAMETER_MALFORMED, "duplicate planchet"),
        Refusal::NonceReuse { .. } => {
            error_status(Code::EXCHANGE_WITHDRAW_NONCE_REUSE, if batch { 400 } else { 409 }, "")
        }
        // The API looked them up before; a serial that is gone since belongs to no denomination any more.
        Refusal::DenominationUnknown { .. } => plain(Code::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN),
        Refusal::DenominationUnusable { denom, problem, .. } => {
            let code = match (problem, operation) {
                (DenomProblem::Future, _) => Code::EXCHANGE_GENERIC_DENOMINATION_VALIDITY_IN_FUTURE,
                (DenomProblem::Expired, _) => Code::EXCHANGE_GENERIC_DENOMINATION_EXPIRED,
                (DenomProblem::Revoked, _) => Code::EXCHANGE_GENERIC_DENOMINATION_REVOKED,
                (DenomProblem::NotRevoked, Operation::RecoupRefresh) => {
                    Code::EXCHANGE_RECOUP_REFRESH_NOT_ELIGIBLE
                }
                (DenomProblem::NotRevoked, _) => Code::EXCHANGE_RECOUP_NOT_ELIGIBLE,
            };
            match keys.find_serial(denom) {
                Some(denom) => denomination_unusable(app, keys, &denom.h_denom_pub, operation, code).await,
                None => plain(Code::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN),
            }
        }
        Refusal::CoinConflict { conflict, .. } => coin_conflict(app, keys, &conflict).await,
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
        // A commitment covers its coin, so nobody can mean this one.
        Refusal::RcTaken => error(Code::GENERIC_PARAMETER_MALFORMED, "rc"),
        Refusal::MeltUnknown => plain(Code::EXCHANGE_REFRESHES_REVEAL_SESSION_UNKNOWN),
        Refusal::RmsMissing => error(Code::GENERIC_PARAMETER_MISSING, "rms"),
        Refusal::RevealCostTooHigh { .. } => plain(Code::EXCHANGE_REFRESHES_REVEAL_AMOUNT_INSUFFICIENT),
        Refusal::PlanchetUnknown if operation == Operation::RecoupRefresh => {
            plain(Code::EXCHANGE_RECOUP_REFRESH_MELT_NOT_FOUND)
        }
        Refusal::PlanchetUnknown => plain(Code::EXCHANGE_RECOUP_WITHDRAW_NOT_FOUND),
        Refusal::Overflow if operation == Operation::Withdraw => {
            plain(Code::EXCHANGE_WITHDRAW_AMOUNT_FEE_OVERFLOW)
        }
        Refusal::Overflow if operation == Operation::Reveal => {
            plain(Code::EXCHANGE_REFRESHES_REVEAL_COST_CALCULATION_OVERFLOW)
        }
        // Only who submits unsigned planchets meets this, and signs them.
        Refusal::SignatureMissing
        | Refusal::RecoupAboveValue
        | Refusal::WireFeeMissing
        | Refusal::TargetMismatch
        | Refusal::TransientOther
        | Refusal::TransferUnknown
        | Refusal::WtidTaken
        | Refusal::Overflow
        | Refusal::Management(_) => {
            tracing::error!(%refusal, "refusal that no request should meet");
            plain(Code::GENERIC_INTERNAL_INVARIANT_FAILURE)
        }
    }
}

async fn reserve_insufficient(
    app: &Exchange,
    keys: &KeyState,
    shortage: &rules::ReserveShortage,
) -> Response {
    let currency = app.config.currency;
    match reserve_history(app, keys, shortage.reserve_pub, &shortage.history.items).await {
        Ok(history) => error_extra(
            ErrorCode::EXCHANGE_WITHDRAW_INSUFFICIENT_FUNDS,
            &InsufficientReserve {
                balance: shortage.balance.of(currency),
                requested_amount: shortage.requested.of(currency),
                history,
            },
        ),
        Err(answer) => answer,
    }
}

async fn coin_conflict(app: &Exchange, keys: &KeyState, conflict: &rules::CoinConflict) -> Response {
    use ErrorCode as Code;
    let code = match conflict.reason {
        ConflictReason::Insufficient { .. } => Code::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS,
        ConflictReason::OtherDenomination => Code::EXCHANGE_GENERIC_COIN_CONFLICTING_DENOMINATION_KEY,
        ConflictReason::OtherAgeCommitment => Code::EXCHANGE_GENERIC_COIN_CONFLICTING_AGE_HASH,
        ConflictReason::OtherDeposit => Code::EXCHANGE_DEPOSIT_CONFLICTING_CONTRACT,
        ConflictReason::RefundAboveDeposit { .. } => Code::EXCHANGE_REFUND_CONFLICT_DEPOSIT_INSUFFICIENT,
        ConflictReason::RefundOtherAmount => Code::EXCHANGE_REFUND_INCONSISTENT_AMOUNT,
    };
    let Some(denom) = keys.find_serial(conflict.history.denom) else {
        return error(Code::GENERIC_DB_INVARIANT_FAILURE, "denomination of a coin");
    };
    match coin_history(app, keys, &conflict.history).await {
        Ok(history) => error_extra(
            code,
            &CoinConflict { coin_pub: conflict.coin_pub, h_denom_pub: denom.h_denom_pub, history },
        ),
        Err(answer) => answer,
    }
}

// --- Histories ----------------------------------------------------------------------------------------------------------

/// Where the signatures of a history's items come from. Items are put together twice if any of them is signed: first to
/// learn what there is to sign, then with the signatures, which are made together on the CPU pool.
#[derive(Default)]
struct Proofs {
    exchange_pub: Option<EddsaPublicKey>,
    /// What is to be signed, in the order of the items.
    messages: Vec<Box<[u8]>>,
    /// The signatures to it.
    signatures: std::vec::IntoIter<EddsaSignature>,
}

impl Proofs {
    fn sign(&mut self, message: &impl SignedMessage) -> (EddsaPublicKey, EddsaSignature) {
        match self.exchange_pub {
            None => {
                self.messages.push(message.message().as_ref().into());
                (EddsaPublicKey::ZERO, EddsaSignature::ZERO)
            }
            Some(key) => (key, self.signatures.next().expect("the same items as the first time")),
        }
    }

    fn recoup(
        &mut self,
        time: Timestamp,
        recoup_amount: Amount,
        coin_pub: EddsaPublicKey,
        reserve_pub: ReservePub,
    ) -> (EddsaPublicKey, EddsaSignature) {
        let timestamp = whole_seconds(time);
        self.sign(&ExchangeConfirmRecoup { timestamp, recoup_amount, coin_pub, reserve_pub })
    }

    fn recoup_refresh(
        &mut self,
        time: Timestamp,
        recoup_amount: Amount,
        coin_pub: EddsaPublicKey,
        old_coin_pub: EddsaPublicKey,
    ) -> (EddsaPublicKey, EddsaSignature) {
        let timestamp = whole_seconds(time);
        self.sign(&ExchangeConfirmRecoupRefresh { timestamp, recoup_amount, coin_pub, old_coin_pub })
    }
}

/// Puts a history together, with the signatures that it needs.
async fn proved<T>(app: &Exchange, keys: &KeyState, build: impl Fn(&mut Proofs) -> Checked<T>) -> Checked<T> {
    let mut proofs = Proofs::default();
    let unsigned = build(&mut proofs)?;
    if proofs.messages.is_empty() {
        return Ok(unsigned);
    }
    let (exchange_pub, signatures) = sign_messages(app, keys, proofs.messages)?.await?;
    let signatures = signatures.into_iter();
    build(&mut Proofs { exchange_pub: Some(exchange_pub), messages: Vec::new(), signatures })
}

/// A coin's history as answers carry it.
///
/// # Errors
/// When there is no usable signing key, or too much is waiting.
pub async fn coin_history(
    app: &Exchange,
    keys: &KeyState,
    history: &CoinHistory,
) -> Checked<Vec<bodies::CoinHistoryItem>> {
    let currency = app.config.currency;
    proved(app, keys, |proofs| Ok(coin_items(currency, history, proofs))).await
}

fn coin_items(
    currency: Currency,
    history: &CoinHistory,
    proofs: &mut Proofs,
) -> Vec<bodies::CoinHistoryItem> {
    let of = |money: Money| -> Amount { money.of(currency) };
    let coin_pub = history.coin_pub;
    let mut items = Vec::with_capacity(history.items.len());
    for item in &history.items {
        items.push(match item {
            CoinHistoryItem::Deposit {
                amount,
                deposit_fee,
                wallet_time,
                refund_deadline,
                merchant_pub,
                h_contract_terms,
                payto_uri,
                wire_salt,
                coin_sig,
            } => bodies::CoinHistoryItem::Deposit(bodies::CoinDeposit {
                amount: of(*amount),
                deposit_fee: of(*deposit_fee),
                timestamp: *wallet_time,
                refund_deadline: Some(*refund_deadline).filter(|deadline| *deadline != Timestamp::ZERO),
                merchant_pub: *merchant_pub,
                h_contract_terms: *h_contract_terms,
                h_wire: h_wire(payto_uri, wire_salt),
                h_age_commitment: history.h_age,
                h_policy: None,
                coin_sig: *coin_sig,
            }),
            CoinHistoryItem::Melt { amount, melt_fee, rc, coin_sig } => {
                bodies::CoinHistoryItem::Melt(bodies::CoinMelt {
                    amount: of(*amount),
                    melt_fee: of(*melt_fee),
                    rc: *rc,
                    h_age_commitment: history.h_age,
                    coin_sig: *coin_sig,
                })
            }
            CoinHistoryItem::Refund {
                amount,
                refund_fee,
                h_contract_terms,
                merchant_pub,
                rtransaction_id,
                merchant_sig,
            } => bodies::CoinHistoryItem::Refund(bodies::CoinRefund {
                amount: of(amount.checked_sub(*refund_fee).expect("a refund covers its fee")),
                refund_fee: of(*refund_fee),
                h_contract_terms: *h_contract_terms,
                merchant_pub: *merchant_pub,
                rtransaction_id: *rtransaction_id,
                merchant_sig: *merchant_sig,
            }),
            CoinHistoryItem::Recoup { amount, reserve_pub, coin_sig, coin_blind, time } => {
                let (exchange_pub, exchange_sig) = proofs.recoup(*time, of(*amount), coin_pub, *reserve_pub);
                bodies::CoinHistoryItem::Recoup(bodies::CoinRecoup {
                    amount: of(*amount),
                    exchange_sig,
                    exchange_pub,
                    reserve_pub: *reserve_pub,
                    coin_sig: *coin_sig,
                    coin_blind: BlindingSecret::from_bytes(*coin_blind),
                    timestamp: whole_seconds(*time),
                })
            }
            CoinHistoryItem::RecoupRefresh { amount, old_coin_pub, coin_sig, coin_blind, time } => {
                let (exchange_pub, exchange_sig) =
                    proofs.recoup_refresh(*time, of(*amount), coin_pub, *old_coin_pub);
                bodies::CoinHistoryItem::RecoupRefresh(bodies::CoinRecoupRefresh {
                    amount: of(*amount),
                    exchange_sig,
                    exchange_pub,
                    old_coin_pub: *old_coin_pub,
                    coin_sig: *coin_sig,
                    coin_blind: BlindingSecret::from_bytes(*coin_blind),
                    timestamp: whole_seconds(*time),
                })
            }
            CoinHistoryItem::OldCoinRecoup { amount, coin_pub: fresh_coin_pub, time } => {
                let (exchange_pub, exchange_sig) =
                    proofs.recoup_refresh(*time, of(*amount), *fresh_coin_pub, coin_pub);
                bodies::CoinHistoryItem::OldCoinRecoup(bodies::OldCoinRecoup {
                    amount: of(*amount),
                    exchange_sig,
                    exchange_pub,
                    coin_pub: *fresh_coin_pub,
                    timestamp: whole_seconds(*time),
                })
            }
        });
    }
    items
}

/// A reserve's history as answers carry it.
///
/// # Errors
/// When there is no usable signing key, or too much is waiting.
pub async fn reserve_history(
    app: &Exchange,
    keys: &KeyState,
    reserve_pub: ReservePub,
    history: &[ReserveHistoryItem],
) -> Checked<Vec<bodies::ReserveHistoryItem>> {
    let currency = app.config.currency;
    proved(app, keys, |proofs| reserve_items(currency, keys, reserve_pub, history, proofs)).await
}

fn reserve_items(
    currency: Currency,
    keys: &KeyState,
    reserve_pub: ReservePub,
    history: &[ReserveHistoryItem],
    proofs: &mut Proofs,
) -> Checked<Vec<bodies::ReserveHistoryItem>> {
    let of = |money: Money| -> Amount { money.of(currency) };
    let mut items = Vec::with_capacity(history.len());
    for item in history {
        items.push(match item {
            ReserveHistoryItem::Credit { time, payto_uri, bank_row, amount } => {
                bodies::ReserveHistoryItem::Credit(bodies::ReserveCredit {
                    timestamp: whole_seconds(*time),
                    sender_account_url: payto_uri.clone(),
                    wire_reference: *bank_row,
                    amount: of(*amount),
                })
            }
            ReserveHistoryItem::Withdraw { reserve_sig, h_coin_ev, denom, fee, amount, .. } => {
                let Some(denom) = keys.find_serial(*denom) else {
                    return Err(error(
                        ErrorCode::GENERIC_DB_INVARIANT_FAILURE,
                        "denomination of a withdrawal",
                    ));
                };
                bodies::ReserveHistoryItem::Withdraw(bodies::ReserveWithdraw {
                    reserve_sig: *reserve_sig,
                    h_coin_envelope: *h_coin_ev,
                    h_denom_pub: denom.h_denom_pub,
                    withdraw_fee: of(*fee),
                    amount: of(*amount),
                })
            }
            ReserveHistoryItem::Recoup { time, coin_pub, amount } => {
                let (exchange_pub, exchange_sig) = proofs.recoup(*time, of(*amount), *coin_pub, reserve_pub);
                bodies::ReserveHistoryItem::Recoup(bodies::ReserveRecoup {
                    exchange_pub,
                    exchange_sig,
                    timestamp: whole_seconds(*time),
                    amount: of(*amount),
                    coin_pub: *coin_pub,
                })
            }
            ReserveHistoryItem::Closing { time, payto_uri, wtid, fee, amount } => {
                let timestamp = whole_seconds(*time);
                let (exchange_pub, exchange_sig) = proofs.sign(&ExchangeReserveClosed {
                    timestamp,
                    closing_amount: of(*amount),
                    closing_fee: of(*fee),
                    reserve_pub,
                    h_payto: batzen_protocol::payto::h_payto(payto_uri),
                    wtid: *wtid,
                });
                bodies::ReserveHistoryItem::Closing(bodies::ReserveClosing {
                    receiver_account_details: payto_uri.clone(),
                    wtid: *wtid,
                    exchange_pub,
                    exchange_sig,
                    timestamp,
                    amount: of(*amount),
                    closing_fee: of(*fee),
                })
            }
            ReserveHistoryItem::History { request_time, reserve_sig, amount } => {
                bodies::ReserveHistoryItem::History(bodies::ReserveHistoryFee {
                    reserve_sig: *reserve_sig,
                    request_timestamp: *request_time,
                    amount: of(*amount),
                })
            }
        });
    }
    Ok(items)
}
