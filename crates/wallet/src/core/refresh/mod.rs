//! Refresh: turns the remaining value of a coin into fresh coins that cannot be linked to it.
//!
//! The wallet commits to three sets of fresh coins. The exchange picks one at random, and the wallet opens
//! the other two. Everything follows from one stored secret, so a killed refresh continues with the same
//! requests.

mod record;
mod session;

use batzen_crypto::refresh::{KAPPA, MAX_FRESH_COINS};
use batzen_crypto::{CoinSecrets, EddsaPublicKey, HashCode, RefreshMasterSecret};
use batzen_protocol::api::exchange::{
    BlindSignatures, CsrMeltCoin, CsrMeltRequest, CsrMeltResponse, MeltConfirmation, MeltRequest,
    RevealRequest,
};
use batzen_protocol::signatures::{
    ExchangeConfirmMelt, SignedMessage, WalletCoinLink, WalletCoinMelt, Zeros,
};
use batzen_protocol::{ErrorCode, Money, Timestamp};

use super::age::CoinAge;
use super::coin::{Coin, CoinSource, CoinStatus, CsSession};
use super::exchange::{CipherChoice, Exchange};
use super::http::{Context, HttpRequest, HttpResponse};
use super::operation::{Operation, Step, View, is_busy};
use super::proof::coin as coin_proof;
use super::proof::denomination::{self, Problem, Use};
use super::proof::known::{Answer, Known};
use super::row::{Transaction, Wait, describe_fees, units};
use super::select::IssuePlan;
use super::state::{Change, Draft, OpId, WalletOperation, WalletState};
use super::{CoreError, Entropy, planchet};
use crate::core::error::{Result, false_proof};

pub use record::*;
pub(crate) use session::Session;

/// Most fresh coins of one refresh. More would make its three candidate sets needlessly large.
const MAX_COINS: usize = 64;
const _: () = assert!(MAX_COINS <= MAX_FRESH_COINS);
/// Most refreshes of one coin, one after the other, in an estimate.
const ROUNDS_MAX: usize = 64;

fn session<'a>(exchange: &'a Exchange, old: &'a Coin, record: &'a Refresh) -> Result<Session<'a>> {
    let mut fresh = Vec::with_capacity(record.fresh.len());
    for item in &record.fresh {
        fresh.push((exchange.denom(&item.h_denom_pub)?, planchet::withdraw_values(item.cs.as_ref())));
    }
    let old_age = old.age.as_ref().map(CoinAge::commitment).transpose()?;
    Ok(Session { old_coin: (&old.coin_priv, old.coin_pub), secret: &record.secret, fresh, old_age })
}

/// The coins that `amount` on a coin of this denomination would yield; `None` if it is too little.
fn plan_fresh(exchange: &Exchange, old: &Coin, amount: Money, now: Timestamp) -> Result<Option<IssuePlan>> {
    let fee_melt = exchange.denom(&old.h_denom_pub)?.fee_refresh;
    let Ok(sum) = amount.checked_sub(fee_melt) else { return Ok(None) };
    // Change keeps the age commitment, so it needs the same age groups.
    let age_mask = old.age.as_ref().map_or(0, |age| age.mask);
    let offers = exchange.offers_of(CipherChoice::Any, age_mask, now);
    let plan = exchange.discretion.split(&offers, sum, MAX_COINS)?;
    Ok((!plan.denoms.is_empty()).then_some(plan))
}

/// The cost of refreshing `change` on a coin: melt fees, withdraw fees, and the remainder that no coin fits. Change that
/// takes more than [`ROUNDS_MAX`] refreshes counts as lost.
#[must_use]
pub(crate) fn cost_of_change(exchange: &Exchange, old: &Coin, change: Money, now: Timestamp) -> Money {
    let Ok(fee_melt) = exchange.denom(&old.h_denom_pub).map(|denom| denom.fee_refresh) else { return change };
    let (mut left, mut cost) = (change, change);
    for _ in 0..ROUNDS_MAX {
        let Ok(Some(plan)) = plan_fresh(exchange, old, left, now) else { break };
        let melted = [fee_melt, plan.value, plan.fees];
        let rest = Money::checked_sum(melted).and_then(|melted| left.checked_sub(melted));
        let (Ok(rest), Ok(less)) = (rest, cost.checked_sub(plan.value)) else { break };
        (left, cost) = (rest, less);
        if plan.denoms.len() < MAX_COINS {
            break;
        }
    }
    cost
}

/// Begins the refreshes that are due.
pub(crate) fn plan(draft: &mut Draft<'_>, now: Timestamp, entropy: &mut dyn Entropy) -> Result<()> {
    let mut due = Vec::new();
    for coin in draft.coins() {
        if coin.remaining.is_zero() {
            continue;
        }
        let Ok(exchange) = draft.exchange(&coin.exchange) else { continue };
        let Ok(denom) = exchange.denom(&coin.h_denom_pub) else { continue };
        // Revoked coins are recouped. Expired coins can be melted only if the exchange remembers a recoup
        // into them.
        if denom.revoked || denom.stamp_expire_legal <= now {
            continue;
        }
        let reason = match coin.status {
            CoinStatus::Used => RefreshReason::Change,
            CoinStatus::Fresh if denom.should_refresh(now) => RefreshReason::Expiry,
            _ => continue,
        };
        due.push((coin.coin_pub, reason));
    }
    if due.is_empty() {
        return Ok(());
    }
    due.retain(|(coin_pub, _)| !is_busy(draft, coin_pub));
    for (coin_pub, reason) in due {
        if reason == RefreshReason::Change && waits(draft, &coin_pub, now, entropy)? {
            continue;
        }
        begin(draft, &coin_pub, reason, now, entropy)?;
    }
    Ok(())
}

/// Returns whether a coin's change waits for its time, which is drawn when the change becomes due and kept
/// with the coin. A coin that expires soon does not wait.
fn waits(
    draft: &mut Draft<'_>,
    coin_pub: &EddsaPublicKey,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<bool> {
    let coin = draft.coin(coin_pub)?;
    let exchange = draft.exchange(&coin.exchange)?;
    let discretion = exchange.discretion;
    let is_refreshable = plan_fresh(exchange, coin, coin.remaining, now)?.is_some();
    if exchange.denom(&coin.h_denom_pub)?.should_refresh(now) || !is_refreshable {
        if coin.refresh_at.is_some() {
            draft.coin_mut(coin_pub)?.refresh_at = None;
        }
        return Ok(false);
    }
    let time = match coin.refresh_at {
        Some(time) => time,
        None if discretion.refresh_delay.is_zero() => return Ok(false),
        None => {
            let time = discretion.refresh_time(now, entropy);
            draft.coin_mut(coin_pub)?.refresh_at = Some(time);
            time
        }
    };
    Ok(now < time)
}

/// The coins whose change waits for its time.
fn delayed(state: &WalletState) -> impl Iterator<Item = &Coin> {
    state.coins.values().filter(|coin| {
        coin.status == CoinStatus::Used && !coin.remaining.is_zero() && coin.refresh_at.is_some()
    })
}

/// The value of change that waits for its refresh at an exchange.
///
/// # Errors
/// [`CoreError::Amount`] on overflow.
pub fn waiting_change(state: &WalletState, base_url: &str) -> Result<Money> {
    let here = delayed(state).filter(|coin| coin.exchange == base_url);
    Ok(Money::checked_sum(here.map(|coin| coin.remaining))?)
}

/// When the next change that waits is due, if any does.
#[must_use]
pub fn next_due(state: &WalletState) -> Option<Timestamp> {
    delayed(state).filter_map(|coin| coin.refresh_at).min()
}

/// The changes that end the waiting of an exchange's change, because a payment needs it now. The next
/// [`super::plan`] begins the refreshes.
#[must_use]
pub fn hasten(state: &WalletState, base_url: &str, now: Timestamp) -> Vec<Change> {
    let here = delayed(state).filter(|coin| coin.exchange == base_url);
    here.map(|coin| Change::Coin(Box::new(Coin { refresh_at: Some(now), ..coin.clone() }))).collect()
}

fn begin(
    draft: &mut Draft<'_>,
    coin_pub: &EddsaPublicKey,
    reason: RefreshReason,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<()> {
    let coin = draft.coin(coin_pub)?.clone();
    let exchange = draft.exchange(&coin.exchange)?.clone();
    let Some(plan) = plan_fresh(&exchange, &coin, coin.remaining, now)? else { return Ok(()) };
    let fee_melt = exchange.denom(&coin.h_denom_pub)?.fee_refresh;
    // An expiring coin that yields no younger coin stays as it is until it can.
    let amount = plan.value.checked_add(plan.fees)?.checked_add(fee_melt)?;
    draft.debit_coin(coin_pub, amount)?;
    // A later refund to the coin waits again.
    draft.coin_mut(coin_pub)?.refresh_at = None;
    let mut record = Refresh {
        reason,
        old_coin_pub: *coin_pub,
        secret: RefreshMasterSecret::from_bytes(entropy.array()),
        amount,
        fee_melt,
        fees_withdraw: plan.fees,
        fresh: plan.denoms.into_iter().map(|h_denom_pub| FreshRecord { h_denom_pub, cs: None }).collect(),
        rc: None,
        noreveal_index: None,
        confirmation: None,
        stage: RefreshStage::Prepare,
        failure: None,
    };
    if missing_cs(&exchange, &record)?.is_empty() {
        commit(&exchange, &coin, &mut record)?;
    }
    draft.begin(now, &exchange.base_url, record);
    Ok(())
}

/// Fixes the commitment. After this the fresh coins cannot change.
fn commit(exchange: &Exchange, old: &Coin, record: &mut Refresh) -> Result<()> {
    record.rc = Some(session(exchange, old, record)?.commitment(&exchange.amount(record.amount))?);
    record.stage = RefreshStage::Melt;
    Ok(())
}

/// Positions of the fresh coins that still lack the exchange's first message.
fn missing_cs(exchange: &Exchange, record: &Refresh) -> Result<Vec<u32>> {
    let mut missing = Vec::new();
    for (position, item) in (0u32..).zip(&record.fresh) {
        if item.cs.is_none() && exchange.denom(&item.h_denom_pub)?.is_cs() {
            missing.push(position);
        }
    }
    Ok(missing)
}

fn rc_of(operation: &WalletOperation, record: &Refresh) -> Result<HashCode> {
    record.rc.ok_or_else(|| CoreError::Inconsistent(format!("refresh {} has no commitment", operation.id)))
}

fn chosen(operation: &WalletOperation, record: &Refresh) -> Result<u32> {
    record
        .noreveal_index
        .ok_or_else(|| CoreError::Inconsistent(format!("refresh {} is not melted", operation.id)))
}

impl Operation for Refresh {
    fn name(&self) -> &'static str {
        "refresh"
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, _poll_ms: u64) -> Result<HttpRequest> {
        let base = &operation.exchange;
        let exchange = state.exchange(base)?;
        let old = state.coin(&self.old_coin_pub)?;
        match self.stage {
            RefreshStage::Prepare => {
                let nks = missing_cs(exchange, self)?
                    .into_iter()
                    .map(|coin_offset| CsrMeltCoin {
                        coin_offset,
                        denom_pub_hash: self.fresh[coin_offset as usize].h_denom_pub,
                    })
                    .collect();
                let body = CsrMeltRequest { rms: self.secret.clone(), nks };
                Ok(HttpRequest::post(Context::Refresh, format!("{base}csr-melt"), &body))
            }
            RefreshStage::Melt => {
                let rc = rc_of(operation, self)?;
                let message = WalletCoinMelt {
                    refresh_commitment: rc,
                    h_denom_pub: old.h_denom_pub,
                    h_age_commitment: old.signed_h_age()?,
                    amount_with_fee: exchange.amount(self.amount),
                    melt_fee: exchange.amount(self.fee_melt),
                };
                let body = MeltRequest {
                    denom_sig: old.denom_sig.clone(),
                    denom_pub_hash: old.h_denom_pub,
                    age_commitment_hash: old.h_age()?,
                    confirm_sig: message.sign(&old.coin_priv),
                    value_with_fee: exchange.amount(self.amount),
                    rc,
                    rms: session(exchange, old, self)?.rms().cloned(),
                    coin_pub: None,
                };
                Ok(HttpRequest::post(Context::Refresh, format!("{base}coins/{}/melt", old.coin_pub), &body))
            }
            RefreshStage::Reveal => {
                let rc = rc_of(operation, self)?;
                let chosen = chosen(operation, self)?;
                let session = session(exchange, old, self)?;
                let transfer_pub = session.transfer_priv(chosen).public_key();
                let coins = session.candidate(chosen)?;
                let link_sigs = coins
                    .iter()
                    .zip(&self.fresh)
                    .map(|(coin, item)| {
                        WalletCoinLink {
                            h_denom_pub: item.h_denom_pub,
                            transfer_pub,
                            h_age_commitment: Zeros,
                            h_coin_envelope: coin.planchet.hash(&item.h_denom_pub),
                        }
                        .sign(&old.coin_priv)
                    })
                    .collect();
                let body = RevealRequest {
                    transfer_pub,
                    transfer_privs: (0..KAPPA as u32)
                        .filter(|candidate| *candidate != chosen)
                        .map(|candidate| session.transfer_priv(candidate))
                        .collect(),
                    link_sigs,
                    coin_evs: coins.into_iter().map(|coin| coin.planchet).collect(),
                    new_denoms_h: self.fresh.iter().map(|item| item.h_denom_pub).collect(),
                    old_age_commitment: old.age.as_ref().map(|age| age.keys.clone()),
                    rms: session.rms().cloned(),
                };
                Ok(HttpRequest::post(Context::Refresh, format!("{base}refreshes/{rc}/reveal"), &body))
            }
            RefreshStage::Done | RefreshStage::Failed | RefreshStage::Lost => {
                Err(CoreError::Inconsistent(format!("refresh {} ended without date", operation.id)))
            }
        }
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let record = *self;
        match record.stage {
            RefreshStage::Prepare => after_csr(step, record, response),
            RefreshStage::Melt => after_melt(step, record, response),
            RefreshStage::Reveal => after_reveal(step, record, response),
            RefreshStage::Done | RefreshStage::Failed | RefreshStage::Lost => Ok(()),
        }
    }

    fn holds(&self, coin_pub: &EddsaPublicKey) -> bool {
        self.old_coin_pub == *coin_pub
    }

    fn held(&self, View { operation, .. }: View<'_>) -> Result<Money> {
        // Nothing of it counts as spent before the exchange has confirmed it.
        if operation.dispute.is_some() { Ok(self.amount) } else { self.value() }
    }

    fn effect(&self, View { operation, .. }: View<'_>) -> Result<i128> {
        Ok(match self.stage {
            _ if operation.is_disputed() => 0,
            RefreshStage::Failed => 0,
            RefreshStage::Lost => -units(self.amount),
            _ => -units(self.fee_melt.checked_add(self.fees_withdraw)?),
        })
    }

    fn coin_changes(&self, _: &WalletState, change: &mut dyn FnMut(&EddsaPublicKey, i128)) -> Result<()> {
        let taken = if self.stage == RefreshStage::Failed { Money::ZERO } else { self.amount };
        change(&self.old_coin_pub, -units(taken));
        Ok(())
    }

    fn is_hidden(&self) -> bool {
        self.stage != RefreshStage::Lost
    }

    fn describe(&self, View { exchange, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        row.amount = exchange.amount(self.amount);
        row.fees = exchange.amount(self.fee_melt.checked_add(self.fees_withdraw)?);
        row.coins = self.fresh.len();
        let why = match self.reason {
            RefreshReason::Change => "Change into fresh coins",
            RefreshReason::Expiry => "Coins that expire into fresh ones",
        };
        row.description = format!(
            "{why}: {}",
            describe_fees(&[
                ("refresh", exchange.amount(self.fee_melt)),
                ("withdrawal", exchange.amount(self.fees_withdraw))
            ])
        );
        row.fail_if(matches!(self.stage, RefreshStage::Failed | RefreshStage::Lost));
        if self.stage == RefreshStage::Failed {
            row.fees = exchange.amount(Money::ZERO);
        }
        row.explain(self.failure.as_deref());
        Ok(())
    }

    fn wait(&self, View { state, exchange, .. }: View<'_>) -> Result<Wait> {
        let until = state.spendable_until(exchange, &self.old_coin_pub)?;
        Ok(Wait { reason: "waits for the exchange to make change", until: Some((until, "coin expires")) })
    }

    fn add_known(&self, _: &Draft<'_>, id: OpId, coin_pub: &EddsaPublicKey, known: &mut Known) -> Result<()> {
        if let Some(rc) = self.rc.filter(|_| self.old_coin_pub == *coin_pub) {
            let answer = match self.stage {
                RefreshStage::Failed => Answer::Refused(id),
                RefreshStage::Prepare | RefreshStage::Melt => Answer::None,
                RefreshStage::Reveal | RefreshStage::Done | RefreshStage::Lost => Answer::Confirmed,
            };
            known.melts.insert(rc, answer);
        }
        Ok(())
    }
}

fn after_csr(step: &mut Step<'_, '_>, mut record: Refresh, response: &HttpResponse) -> Result<()> {
    let exchange = step.draft.exchange(&step.operation.exchange)?.clone();
    match (response.status, response.code()) {
        (200, _) => {
            let answer: CsrMeltResponse = response.json("preparing change")?;
            let missing = missing_cs(&exchange, &record)?;
            if answer.ewvs.len() != missing.len() {
                return Err(response.malformed("preparing change", "wrong number of values"));
            }
            for (position, item) in missing.into_iter().zip(answer.ewvs) {
                let nonce = record.secret.cs_nonce(position);
                record.fresh[position as usize].cs = Some(CsSession::new(nonce, &item.ewv)?);
            }
            let old = step.draft.coin(&record.old_coin_pub)?.clone();
            commit(&exchange, &old, &mut record)?;
            step.proceed(record);
            Ok(())
        }
        _ if denomination::is_claim(response) => {
            // Nothing is committed yet: reverse the debit, and let the planner begin again with other
            // denominations.
            let hashes: Vec<HashCode> = record.fresh.iter().map(|item| item.h_denom_pub).collect();
            let operations = ["csr-melt"];
            let (h_denom_pub, _) =
                denomination::verify(&exchange, &hashes, &operations, Use::Issue, response, step.now)?;
            step.draft.stop_offering(&step.operation.exchange, &h_denom_pub)?;
            fail(step, record, "a denomination is no longer offered; beginning again", None)
        }
        _ => Err(response.refusal("preparing change")),
    }
}

/// Ends a refresh before the exchange has debited anything.
fn fail(
    step: &mut Step<'_, '_>,
    mut record: Refresh,
    reason: impl Into<String>,
    status: Option<CoinStatus>,
) -> Result<()> {
    step.draft.credit_coin(&record.old_coin_pub, record.amount)?;
    if let Some(status) = status {
        step.draft.coin_mut(&record.old_coin_pub)?.status = status;
    }
    record.stage = RefreshStage::Failed;
    record.failure = Some(reason.into());
    step.finish(record);
    Ok(())
}

fn after_melt(step: &mut Step<'_, '_>, mut record: Refresh, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code()) {
        (200, _) => {
            let answer: MeltConfirmation = response.json("melting a coin")?;
            let exchange = step.draft.exchange(&step.operation.exchange)?;
            exchange.require_signing_key(&answer.exchange_pub, step.now)?;
            let message = ExchangeConfirmMelt {
                refresh_commitment: rc_of(&step.operation, &record)?,
                noreveal_index: answer.noreveal_index,
            };
            if answer.noreveal_index as usize >= KAPPA
                || !message.verify(&answer.exchange_pub, &answer.exchange_sig)
            {
                return Err(CoreError::BadSignature { what: "the exchange's confirmation of a melt" });
            }
            record.noreveal_index = Some(answer.noreveal_index);
            record.confirmation = Some((answer.exchange_pub, answer.exchange_sig));
            record.stage = RefreshStage::Reveal;
            step.proceed(record);
            Ok(())
        }
        _ if denomination::is_claim(response) => {
            let h_denom_pub = step.draft.coin(&record.old_coin_pub)?.h_denom_pub;
            let exchange = step.draft.exchange(&step.operation.exchange)?;
            let asked = [h_denom_pub];
            let (_, problem) =
                denomination::verify(exchange, &asked, &["MELT"], Use::Spend, response, step.now)?;
            if problem != Problem::Revoked {
                return fail(step, record, "the coin has expired", Some(CoinStatus::Lost));
            }
            step.draft.revoke(&step.operation.exchange, &h_denom_pub, step.now)?;
            fail(step, record, "the coin's denomination was revoked; it will be paid back", None)
        }
        (400, ErrorCode::EXCHANGE_MELT_COIN_EXPIRED_NO_ZOMBIE) => {
            let h_denom_pub = step.draft.coin(&record.old_coin_pub)?.h_denom_pub;
            let exchange = step.draft.exchange(&step.operation.exchange)?;
            denomination::check_unspendable(exchange.denom(&h_denom_pub)?, step.now)?;
            fail(step, record, "the coin has expired", Some(CoinStatus::Lost))
        }
        _ if coin_proof::is_conflict(response) => {
            let old_coin_pub = record.old_coin_pub;
            let about =
                coin_proof::Asked::Melt { rc: rc_of(&step.operation, &record)?, amount: record.amount };
            let accept = step.accept_refused;
            let proof = coin_proof::verify(&step.draft, &old_coin_pub, about, accept, response, step.now)?;
            fail(step, record, "the coin was spent elsewhere, perhaps by a copy of this wallet", None)?;
            coin_proof::accept(step, &old_coin_pub, &proof)
        }
        // The coin is good: a refusal needs proof.
        (400..=499, code) if code != ErrorCode::NONE => {
            let reason = response.refusal("melting a coin").to_string();
            Err(false_proof("the exchange's refusal to melt a valid coin", reason))
        }
        _ => Err(response.refusal("melting a coin")),
    }
}

fn after_reveal(step: &mut Step<'_, '_>, mut record: Refresh, response: &HttpResponse) -> Result<()> {
    match (response.status, response.code()) {
        (200, _) => {}
        (
            410,
            code @ (ErrorCode::EXCHANGE_GENERIC_DENOMINATION_EXPIRED
            | ErrorCode::EXCHANGE_GENERIC_DENOMINATION_REVOKED),
        ) => {
            let exchange = step.draft.exchange(&step.operation.exchange)?;
            let mut verdict = Ok(());
            for item in &record.fresh {
                verdict = denomination::check_unissuable(exchange.denom(&item.h_denom_pub)?, step.now);
                if verdict.is_ok() {
                    break;
                }
            }
            verdict?;
            record.stage = RefreshStage::Lost;
            let why = if code == ErrorCode::EXCHANGE_GENERIC_DENOMINATION_EXPIRED {
                "expired"
            } else {
                "was revoked"
            };
            record.failure =
                Some(format!("a denomination of the change {why} before the change could be fetched"));
            step.finish(record);
            return Ok(());
        }
        // The exchange has confirmed the melt, and the reveal request follows from the stored state alone.
        (400..=499, code) if code != ErrorCode::NONE => {
            let reason = response.refusal("fetching change").to_string();
            let refusal = "the exchange's refusal to give change for a melt that it confirmed";
            return Err(false_proof(refusal, reason));
        }
        _ => return Err(response.refusal("fetching change")),
    }
    let answer: BlindSignatures = response.json("fetching change")?;
    if answer.ev_sigs.len() != record.fresh.len() {
        let reason = format!("{} signatures for {} coins", answer.ev_sigs.len(), record.fresh.len());
        return Err(response.malformed("fetching change", reason));
    }
    let exchange = step.draft.exchange(&step.operation.exchange)?.clone();
    let old = step.draft.coin(&record.old_coin_pub)?.clone();
    let (session, chosen) = (session(&exchange, &old, &record)?, chosen(&step.operation, &record)?);
    let coins = session.candidate(chosen)?;
    let age = match &old.age {
        Some(age) => Some(age.derive(&session.transfer_secret(chosen)?)?),
        None => None,
    };
    for ((fresh, item), signature) in coins.into_iter().zip(&record.fresh).zip(&answer.ev_sigs) {
        let denom_sig = fresh
            .unblind
            .unblind(&signature.ev_sig)
            .map_err(|_| CoreError::BadSignature { what: "the exchange's blind signature of change" })?;
        let CoinSecrets { coin_priv, blinding } = fresh.secrets;
        step.draft.put_coin(Coin {
            coin_pub: fresh.coin_pub,
            coin_priv,
            blinding,
            cs: item.cs,
            age: age.clone(),
            exchange: exchange.base_url.clone(),
            h_denom_pub: item.h_denom_pub,
            denom_sig,
            source: CoinSource::Refresh { operation: step.operation.id, old_coin_pub: record.old_coin_pub },
            status: CoinStatus::Fresh,
            remaining: exchange.denom(&item.h_denom_pub)?.value,
            created: step.now,
            refresh_at: None,
            receipt: None,
        });
    }
    record.stage = RefreshStage::Done;
    step.finish(record);
    Ok(())
}
