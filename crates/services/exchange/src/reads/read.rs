//! Reads outside of a batch: committed rows only. The rows may have changed by the time a command is
//! executed, so the rules decide again. Every function fails when the store cannot be read.

use std::collections::{HashMap, HashSet};
use std::ops::{Bound, ControlFlow};

use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Reads, Store, StoreError, Table};
use batzen_tables::exchange::{
    AccountId, AccountKey, AggregateKey, AggregateRow, Aggregates, AsideKey, AsideRow, CloseRequests,
    Closings, CoinKey, CoinPub, CoinRow, Coins, ContractRow, Contracts, CounterKey, Counters, CreditsAside,
    Cursors, DenomSerial, DepositKey, DepositRow, DepositTarget, Deposits, HistoryRequests, MeltByRc,
    MeltKey, MeltRow, Melts, PaytoHash, Prepared, PreparedRow, PurseDeposits, PurseKey, PurseMergeRow,
    PurseMerges, PursePub, PurseRow, Purses, RcKey, RecoupCredits, RecoupRefreshCredits, RecoupRefreshes,
    Recoups, Refunds, ReserveKey, ReserveOpenDeposits, ReserveOpens, ReservePub, ReserveRow, Reserves,
    ReservesIn, RevealRow, Reveals, WireOut, WireOutRow, WireTargetKey, WireTargets, WithdrawalKey,
    WithdrawalRow, Withdrawals, WtidKey, ready_position,
};

use crate::rules::{
    CoinHistory, CoinHistoryItem, DenomTable, DenomTerms, ReserveHistoryItem, ReserveStatement,
};

type Result<T> = std::result::Result<T, StoreError>;

fn terms(store: &Store, denoms: &DenomTable, serial: DenomSerial) -> Result<DenomTerms> {
    Ok(denoms.find(store, serial)?.expect("rows name only denominations that are known for ever"))
}

/// The payto URI of an account.
pub fn payto(store: &Store, h_payto: PaytoHash) -> Result<Option<String>> {
    Ok(store.get::<WireTargets>(&WireTargetKey { h_payto })?.map(|found| found.row.payto_uri))
}

fn required_payto(store: &Store, h_payto: PaytoHash) -> Result<String> {
    Ok(payto(store, h_payto)?.expect("accounts in rows are kept"))
}

/// The payto URIs of a history's accounts, read at once, because a history may be long.
fn required_paytos(
    store: &Store,
    accounts: impl Iterator<Item = PaytoHash>,
) -> Result<HashMap<PaytoHash, String>> {
    let accounts: HashSet<_> = accounts.collect();
    let keys: Vec<_> = accounts.into_iter().map(|h_payto| WireTargetKey { h_payto }).collect();
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let found = store.get_many::<WireTargets>(&keys)?;
    let known = keys.into_iter().zip(found).map(|(key, found)| {
        let row = found.expect("accounts in rows are kept").row;
        (key.h_payto, row.payto_uri)
    });
    Ok(known.collect())
}

// --- Reserves
// -------------------------------------------------------------------------------------------------------

/// A reserve.
pub fn reserve(store: &Store, reserve_pub: ReservePub) -> Result<Option<ReserveRow>> {
    Ok(store.get::<Reserves>(&ReserveKey { reserve_pub })?.map(|found| found.row))
}

/// A reserve's balance and history: all of it, or only events at or after `since`. None: unknown reserve.
pub fn reserve_statement(
    store: &Store,
    denoms: &DenomTable,
    reserve_pub: ReservePub,
    since: Option<Timestamp>,
) -> Result<Option<ReserveStatement>> {
    // A single read, so that all rows are from the same moment.
    let mut reads = Reads::default();
    let row = reads.get::<Reserves>(&ReserveKey { reserve_pub });
    let credits = reads.lookup::<ReservesIn>(ReservesIn::BY_RESERVE, &reserve_pub);
    let withdrawals = reads.lookup::<Withdrawals>(Withdrawals::BY_RESERVE, &reserve_pub);
    let recoups = reads.lookup::<RecoupCredits>(RecoupCredits::BY_RESERVE, &reserve_pub);
    let closings = reads.lookup::<Closings>(Closings::BY_RESERVE, &reserve_pub);
    let requests = reads.lookup::<HistoryRequests>(HistoryRequests::BY_RESERVE, &reserve_pub);
    let merges = reads.lookup::<PurseMerges>(PurseMerges::BY_RESERVE, &reserve_pub);
    let opens = reads.lookup::<ReserveOpens>(ReserveOpens::BY_RESERVE, &reserve_pub);
    let closes = reads.lookup::<CloseRequests>(CloseRequests::BY_RESERVE, &reserve_pub);
    let mut answers = store.read(reads)?;
    let Some(row) = answers.row(row)?.map(|found| found.row) else { return Ok(None) };
    let since = since.unwrap_or(Timestamp::ZERO);
    let (credits, closings) = (answers.group(credits)?, answers.group(closings)?);
    let (withdrawals, recoups) = (answers.group(withdrawals)?, answers.group(recoups)?);
    let requests = answers.group(requests)?;
    let (merges, opens, closes) = (answers.group(merges)?, answers.group(opens)?, answers.group(closes)?);
    let events = credits.len() + closings.len() + withdrawals.len() + recoups.len() + requests.len();
    let events = events + merges.len() + opens.len() + closes.len();
    let merges: Vec<_> = merges.into_iter().filter(|found| found.row.merge_time >= since).collect();
    let keys: Vec<_> = merges.iter().map(|found| found.key.clone()).collect();
    let purses = if keys.is_empty() { Vec::new() } else { store.get_many::<Purses>(&keys)? };
    let accounts = credits.iter().map(|found| found.row.h_payto);
    let paytos = required_paytos(store, accounts.chain(closings.iter().map(|found| found.row.h_payto)))?;
    let mut items = Vec::new();
    for found in credits.into_iter().filter(|found| found.row.time >= since) {
        items.push(ReserveHistoryItem::Credit {
            time: found.row.time,
            payto_uri: paytos[&found.row.h_payto].clone(),
            bank_row: found.key.bank_row,
            amount: found.row.amount,
        });
    }
    for found in withdrawals.into_iter().filter(|found| found.row.time >= since) {
        let terms = terms(store, denoms, found.row.denom)?;
        items.push(ReserveHistoryItem::Withdraw {
            time: found.row.time,
            reserve_sig: found.row.reserve_sig,
            h_coin_ev: found.key.h_coin_ev,
            denom: found.row.denom,
            fee: terms.fee_withdraw,
            amount: terms.value.checked_add(terms.fee_withdraw).expect("was added before"),
        });
    }
    for found in recoups.into_iter().filter(|found| found.row.time >= since) {
        items.push(ReserveHistoryItem::Recoup {
            time: found.row.time,
            coin_pub: found.key.coin_pub,
            amount: found.row.amount,
        });
    }
    for found in closings.into_iter().filter(|found| found.row.time >= since) {
        items.push(ReserveHistoryItem::Closing {
            time: found.row.time,
            payto_uri: paytos[&found.row.h_payto].clone(),
            wtid: found.row.wtid,
            fee: found.row.fee,
            amount: found.row.amount,
        });
    }
    for (found, purse) in merges.into_iter().zip(purses) {
        // Garbage collection has just removed a purse that was refunded, which has no effect.
        let Some(purse) = purse else { continue };
        items.push(ReserveHistoryItem::Merge {
            purse_pub: found.key.purse_pub,
            purse: Box::new(purse.row),
            merge: Box::new(found.row),
        });
    }
    for found in requests.into_iter().filter(|found| found.key.request_time >= since) {
        items.push(ReserveHistoryItem::History {
            request_time: found.key.request_time,
            reserve_sig: found.row.reserve_sig,
            amount: found.row.fee,
        });
    }
    for found in opens.into_iter().filter(|found| found.key.request_time >= since) {
        items.push(ReserveHistoryItem::Open {
            request_time: found.key.request_time,
            reserve_sig: found.row.reserve_sig,
            requested_expiration: found.row.requested_expiration,
            requested_purses: found.row.requested_purses,
            amount: found.row.payment,
        });
    }
    for found in closes.into_iter().filter(|found| found.key.request_time >= since) {
        items.push(ReserveHistoryItem::Close {
            request_time: found.key.request_time,
            reserve_sig: found.row.reserve_sig,
            h_payto: found.row.requested,
        });
    }
    Ok(Some(ReserveStatement { balance: row.balance, items, events }))
}

/// Finds those of these planchets that the reserve has withdrawn, in their order. It answers a complete
/// repetition.
pub(crate) fn withdrawals(
    store: &Store,
    reserve_pub: ReservePub,
    h_coin_evs: &[HashCode],
) -> Result<Vec<Option<WithdrawalRow>>> {
    let keys: Vec<_> =
        h_coin_evs.iter().map(|h_coin_ev| WithdrawalKey { reserve_pub, h_coin_ev: *h_coin_ev }).collect();
    let found = store.get_many::<Withdrawals>(&keys)?;
    Ok(found.into_iter().map(|found| found.map(|found| found.row)).collect())
}

/// The earliest withdrawal of a planchet. For recoup.
pub fn withdrawal_of(store: &Store, h_coin_ev: HashCode) -> Result<Option<(ReservePub, WithdrawalRow)>> {
    let found = store.lookup::<Withdrawals>(Withdrawals::BY_COIN_EV, &h_coin_ev)?;
    Ok(found.into_iter().next().map(|found| (found.key.reserve_pub, found.row)))
}

// --- Purses
// --------------------------------------------------------------------------------------------------------

/// A purse with its merge, if it is merged.
pub fn purse(store: &Store, purse_pub: PursePub) -> Result<Option<(PurseRow, Option<PurseMergeRow>)>> {
    let mut reads = Reads::default();
    let row = reads.get::<Purses>(&PurseKey { purse_pub });
    let merge = reads.get::<PurseMerges>(&PurseKey { purse_pub });
    let mut answers = store.read(reads)?;
    let merge = answers.row(merge)?.map(|found| found.row);
    Ok(answers.row(row)?.map(|found| (found.row, merge)))
}

/// The reserve that a purse is merged into, and its coins.
pub(crate) fn purse_parts(store: &Store, purse_pub: PursePub) -> Result<(Option<ReservePub>, Vec<CoinPub>)> {
    let mut reads = Reads::default();
    let merge = reads.get::<PurseMerges>(&PurseKey { purse_pub });
    let coins = reads.lookup::<PurseDeposits>(PurseDeposits::BY_PURSE, &purse_pub);
    let mut answers = store.read(reads)?;
    let reserve_pub = answers.row(merge)?.map(|found| found.row.reserve_pub);
    Ok((reserve_pub, answers.group(coins)?.into_iter().map(|found| found.key.coin_pub).collect()))
}

/// The contract under a key, with its purse.
pub fn contract(store: &Store, contract_pub: EddsaPublicKey) -> Result<Option<(PursePub, ContractRow)>> {
    let found = store.lookup::<Contracts>(Contracts::BY_CONTRACT, &contract_pub)?;
    Ok(found.into_iter().next().map(|found| (found.key.purse_pub, found.row)))
}

// --- Coins
// ----------------------------------------------------------------------------------------------------------

/// A known coin.
pub fn coin(store: &Store, coin_pub: CoinPub) -> Result<Option<CoinRow>> {
    Ok(store.get::<Coins>(&CoinKey { coin_pub })?.map(|found| found.row))
}

/// The history of a coin. None if it was never used.
pub fn coin_history(store: &Store, denoms: &DenomTable, coin_pub: CoinPub) -> Result<Option<CoinHistory>> {
    let mut reads = Reads::default();
    let row = reads.get::<Coins>(&CoinKey { coin_pub });
    let deposits = reads.lookup::<Deposits>(Deposits::BY_COIN, &coin_pub);
    let melts = reads.lookup::<Melts>(Melts::BY_COIN, &coin_pub);
    let refunds = reads.lookup::<Refunds>(Refunds::BY_COIN, &coin_pub);
    let recoups = reads.lookup::<Recoups>(Recoups::BY_COIN, &coin_pub);
    let recoup_refreshes = reads.lookup::<RecoupRefreshes>(RecoupRefreshes::BY_COIN, &coin_pub);
    let credits = reads.lookup::<RecoupRefreshCredits>(RecoupRefreshCredits::BY_OLD_COIN, &coin_pub);
    let purse_deposits = reads.lookup::<PurseDeposits>(PurseDeposits::BY_COIN, &coin_pub);
    let open_deposits = reads.lookup::<ReserveOpenDeposits>(ReserveOpenDeposits::BY_COIN, &coin_pub);
    let mut answers = store.read(reads)?;
    let Some(row) = answers.row(row)?.map(|found| found.row) else { return Ok(None) };
    let terms = terms(store, denoms, row.denom)?;
    let deposits = answers.group(deposits)?;
    let paytos = required_paytos(store, deposits.iter().map(|found| found.row.h_payto))?;
    let mut items = Vec::new();
    for found in deposits {
        items.push(CoinHistoryItem::Deposit {
            amount: found.row.amount,
            deposit_fee: terms.fee_deposit,
            wallet_time: found.row.wallet_time,
            refund_deadline: found.row.refund_deadline,
            merchant_pub: found.key.merchant_pub,
            h_contract_terms: found.key.h_contract_terms,
            payto_uri: paytos[&found.row.h_payto].clone(),
            wire_salt: found.row.wire_salt,
            coin_sig: found.row.coin_sig,
        });
    }
    for found in answers.group(melts)? {
        items.push(CoinHistoryItem::Melt {
            amount: found.row.amount,
            melt_fee: terms.fee_refresh,
            rc: found.key.rc,
            coin_sig: found.row.coin_sig,
        });
    }
    for found in answers.group(refunds)? {
        items.push(CoinHistoryItem::Refund {
            amount: found.row.amount,
            refund_fee: terms.fee_refund,
            h_contract_terms: found.key.h_contract_terms,
            merchant_pub: found.key.merchant_pub,
            rtransaction_id: found.key.rtransaction_id,
            merchant_sig: found.row.merchant_sig,
        });
    }
    for found in answers.group(recoups)? {
        items.push(CoinHistoryItem::Recoup {
            amount: found.row.amount,
            reserve_pub: found.row.reserve_pub,
            coin_sig: found.row.coin_sig,
            coin_blind: found.row.coin_blind,
            time: found.row.time,
        });
    }
    for found in answers.group(recoup_refreshes)? {
        items.push(CoinHistoryItem::RecoupRefresh {
            amount: found.row.amount,
            old_coin_pub: found.row.old_coin_pub,
            coin_sig: found.row.coin_sig,
            coin_blind: found.row.coin_blind,
            time: found.row.time,
        });
    }
    for found in answers.group(credits)? {
        items.push(CoinHistoryItem::OldCoinRecoup {
            amount: found.row.amount,
            coin_pub: found.key.coin_pub,
            time: found.row.time,
        });
    }
    for found in answers.group(purse_deposits)? {
        let (amount, purse_pub) = (found.row.amount, found.key.purse_pub);
        let (refunded, coin_sig) = (found.row.refunded, found.row.coin_sig);
        items.push(CoinHistoryItem::PurseDeposit { amount, purse_pub, refunded, coin_sig });
        if refunded {
            let refund_fee = terms.fee_refund;
            items.push(CoinHistoryItem::PurseRefund { amount, refund_fee, purse_pub });
        }
    }
    for found in answers.group(open_deposits)? {
        items.push(CoinHistoryItem::ReserveOpenDeposit {
            amount: found.row.amount,
            reserve_sig: found.row.reserve_sig,
            coin_sig: found.row.coin_sig,
        });
    }
    Ok(Some(CoinHistory { coin_pub, denom: row.denom, h_age: row.h_age, remaining: row.remaining, items }))
}

/// A melt with its old coin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundMelt {
    /// The old coin.
    pub coin_pub: CoinPub,
    /// The old coin's row: denomination and age commitment.
    pub(crate) coin: CoinRow,
    pub(crate) melt: MeltRow,
}

/// The melt under a commitment.
pub fn melt_by_rc(store: &Store, rc: HashCode) -> Result<Option<FoundMelt>> {
    // These rows are never deleted, and the columns in use here never change.
    let Some(found) = store.get::<MeltByRc>(&RcKey { rc })? else { return Ok(None) };
    let coin_pub = found.row.coin_pub;
    let melt = store.get::<Melts>(&MeltKey { coin_pub, rc })?.map(|found| found.row);
    let coin = coin(store, coin_pub)?;
    Ok(melt.zip(coin).map(|(melt, coin)| FoundMelt { coin_pub, coin, melt }))
}

/// The reveal of a melt, if there is one. It answers a repetition.
pub fn reveal(store: &Store, coin_pub: CoinPub, rc: HashCode) -> Result<Option<RevealRow>> {
    Ok(store.get::<Reveals>(&MeltKey { coin_pub, rc })?.map(|found| found.row))
}

/// The earliest melt that revealed a planchet. For recoup-refresh.
pub fn reveal_of(store: &Store, h_coin_ev: HashCode) -> Result<Option<(MeltKey, RevealRow)>> {
    let found = store.lookup::<Reveals>(Reveals::BY_COIN_EV, &h_coin_ev)?;
    Ok(found.into_iter().next().map(|found| (found.key, found.row)))
}

/// All reveals of a coin's melts, for the link. Empty if there are none, or the coin is unknown.
pub fn links(store: &Store, coin_pub: CoinPub) -> Result<Vec<RevealRow>> {
    let found = store.lookup::<Reveals>(Reveals::BY_COIN, &coin_pub)?;
    Ok(found.into_iter().map(|found| found.row).collect())
}

// --- Deposits and transfers
// -----------------------------------------------------------------------------------------

/// The status of a deposit for its merchant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepositStatus {
    pub(crate) deposit: DepositRow,
    /// The merchant's account.
    pub(crate) payto_uri: String,
    /// The deposit fee of its coin.
    pub(crate) deposit_fee: Money,
    /// The transfer that pays it, once that is decided.
    pub transfer: Option<WireOutRow>,
    /// The KYC requirement that holds its transfer back, if any.
    pub kyc_row: Option<u64>,
}

/// A deposit.
pub fn deposit(store: &Store, key: &DepositKey) -> Result<Option<DepositRow>> {
    Ok(store.get::<Deposits>(key)?.map(|found| found.row))
}

/// A deposit with its status.
pub fn deposit_status(store: &Store, denoms: &DenomTable, key: &DepositKey) -> Result<Option<DepositStatus>> {
    let Some(deposit) = deposit(store, key)? else { return Ok(None) };
    let (mut transfer, mut kyc_row) = (None, None);
    if let Some(wtid) = deposit.wtid {
        transfer = store.get::<WireOut>(&WtidKey { wtid })?.map(|found| found.row);
        if transfer.is_none() {
            kyc_row = store
                .lookup::<Aggregates>(Aggregates::BY_TARGET, &deposit.h_payto)?
                .into_iter()
                .find(|found| found.row.wtid == wtid)
                .and_then(|found| found.row.kyc_row);
        }
    }
    let payto_uri = required_payto(store, deposit.h_payto)?;
    let deposit_fee = terms(store, denoms, deposit.denom)?.fee_deposit;
    Ok(Some(DepositStatus { deposit, payto_uri, deposit_fee, transfer, kyc_row }))
}

/// A transfer to a merchant, with its deposits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// The transfer.
    pub wire_out: WireOutRow,
    /// The deposits that it pays, in their order.
    pub deposits: Vec<TransferDeposit>,
}

/// A deposit in a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferDeposit {
    pub(crate) key: DepositKey,
    /// The contribution, including the fee and disregarding refunds.
    pub(crate) amount: Money,
    pub(crate) deposit_fee: Money,
}

/// A transfer to a merchant. None until it is decided, which includes the time while its deposits wait in a
/// transient aggregate.
pub fn transfer(store: &Store, denoms: &DenomTable, wtid: Wtid) -> Result<Option<Transfer>> {
    let Some(wire_out) = store.get::<WireOut>(&WtidKey { wtid })?.map(|found| found.row) else {
        return Ok(None);
    };
    let mut deposits = Vec::new();
    for found in store.lookup::<Deposits>(Deposits::BY_WTID, &wtid)? {
        let deposit_fee = terms(store, denoms, found.row.denom)?.fee_deposit;
        deposits.push(TransferDeposit { key: found.key, amount: found.row.amount, deposit_fee });
    }
    Ok(Some(Transfer { wire_out, deposits }))
}

// --- Workers
// --------------------------------------------------------------------------------------------------------

/// The transient aggregate of a merchant's account, if there is one. The next `Aggregate` must use its wtid.
pub fn transient(store: &Store, target: DepositTarget, account: AccountId) -> Result<Option<AggregateRow>> {
    let DepositTarget { h_payto, merchant_pub } = target;
    Ok(store.get::<Aggregates>(&AggregateKey { h_payto, merchant_pub, account })?.map(|found| found.row))
}

/// Where to continue reading the queue of due deposits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DuePosition(Option<Vec<u8>>);

/// The targets of the next deposits that are due at `now` (from `ExchangeRules::aggregation_time`), each
/// once, and the position at which to continue (None at the end). Reads at most `deposits` deposits after
/// `from`, most urgent first: only the index, and one row for each target. Deposits that may still be
/// refunded after their wire deadline are not filtered here: the rule leaves them out.
pub fn due_targets(
    store: &Store,
    now: Timestamp,
    from: &DuePosition,
    deposits: usize,
) -> Result<(Vec<DepositTarget>, Option<DuePosition>)> {
    let begin = from.0.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let end = batzen_store::prefix_successor(&batzen_store::Column::to_bytes(&now));
    let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut firsts = Vec::new();
    let mut seen = HashSet::new();
    let (mut looked_at, mut next, mut bad) = (0, None, None);
    store.positions::<Deposits>(Deposits::BY_READY, begin, end, |position| {
        match ready_position(position) {
            Ok((_, tag)) if seen.insert(tag) => firsts.push(position.to_vec()),
            Ok(_) => {}
            Err(source) => bad = Some(decode_error(source)),
        }
        looked_at += 1;
        if looked_at < deposits && bad.is_none() {
            return ControlFlow::Continue(());
        }
        next = Some(DuePosition(Some(position.to_vec())));
        ControlFlow::Break(())
    })?;
    if let Some(bad) = bad {
        return Err(bad);
    }
    let mut targets = Vec::with_capacity(firsts.len());
    for first in firsts {
        let only = (Bound::Included(first.clone()), Bound::Included(first));
        // Another aggregator has taken this deposit.
        let found = store.range_positions::<Deposits>(Deposits::BY_READY, only.0, only.1, 1, false)?;
        targets.extend(
            found.into_iter().map(|found| DepositTarget {
                h_payto: found.row.h_payto,
                merchant_pub: found.key.merchant_pub,
            }),
        );
    }
    Ok((targets, next))
}

fn decode_error(source: batzen_store::DecodeError) -> StoreError {
    StoreError::Decode { table: Deposits::DEF.name, source }
}

/// When the next deposit after `after` becomes due; with None, the first of all. Reads only the index.
pub fn next_ready(store: &Store, after: Option<Timestamp>) -> Result<Option<Timestamp>> {
    let from = after.map(|after| batzen_store::prefix_successor(&batzen_store::Column::to_bytes(&after)));
    let from = match &from {
        None => Bound::Unbounded,
        Some(Some(from)) => Bound::Included(from.as_slice()),
        // There is no time after never.
        Some(None) => return Ok(None),
    };
    let mut first = Ok(None);
    store.positions::<Deposits>(Deposits::BY_READY, from, Bound::Unbounded, |position| {
        first = ready_position(position).map(|(ready, _)| Some(ready)).map_err(decode_error);
        ControlFlow::Break(())
    })?;
    first
}

/// Counts the deposits of a target that an aggregation at `now` would find, up to `max`. Reads only the
/// index.
pub fn open_deposits(store: &Store, target: &DepositTarget, now: Timestamp, max: usize) -> Result<usize> {
    let (from, to) = target.range(now);
    let mut count = 0;
    store.positions::<Deposits>(Deposits::BY_TARGET, Bound::Included(&from), Bound::Excluded(&to), |_| {
        count += 1;
        if count < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(count)
}

/// Reserves that have expired by `now` and have money and an origin account, earliest first; at most `limit`.
pub fn expired_reserves(
    store: &Store,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(ReservePub, ReserveRow)>> {
    let found = store.range::<Reserves, Timestamp>(Reserves::BY_EXPIRATION, ..=now, limit)?;
    Ok(found.into_iter().map(|found| (found.key.reserve_pub, found.row)).collect())
}

/// Transfers that are neither finished nor failed, oldest first; at most `limit`.
pub fn open_transfers(store: &Store, limit: usize) -> Result<Vec<(Wtid, PreparedRow)>> {
    let found =
        store.range_bytes::<Prepared>(Prepared::OPEN, Bound::Unbounded, Bound::Unbounded, limit, false)?;
    Ok(found.into_iter().map(|found| (found.key.wtid, found.row)).collect())
}

/// Transfers that the bank refused for good, in the order in which they were decided.
pub fn failed_transfers(store: &Store, limit: usize) -> Result<Vec<(Wtid, PreparedRow)>> {
    let found =
        store.range_bytes::<Prepared>(Prepared::FAILED, Bound::Unbounded, Bound::Unbounded, limit, false)?;
    Ok(found.into_iter().map(|found| (found.key.wtid, found.row)).collect())
}

/// Credits that are set aside and not settled, the oldest first.
pub fn credits_aside(store: &Store, limit: usize) -> Result<Vec<(AsideKey, AsideRow)>> {
    let all = Bound::Unbounded;
    let found = store.range_bytes::<CreditsAside>(CreditsAside::OPEN, all.clone(), all, limit, false)?;
    Ok(found.into_iter().map(|found| (found.key, found.row)).collect())
}

/// The number of changes of the key set.
pub(crate) fn key_set_version(store: &Store) -> Result<u64> {
    let key = CounterKey { name: Counters::KEY_SET.to_owned() };
    Ok(store.get::<Counters>(&key)?.map_or(0, |found| found.row.value))
}

/// The last bank row that was processed on an account; 0 at first.
pub fn cursor(store: &Store, account: AccountId) -> Result<u64> {
    Ok(store.get::<Cursors>(&AccountKey { account })?.map_or(0, |found| found.row.bank_row))
}
