//! Conditions that must hold after a run, checked from the outside: in the stores, in the ledger, and in the
//! answers that clients received.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use batzen_bank::books::history_flow;
use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_exchange::reads::totals::totals;
use batzen_exchange::rules::DenomTable;
use batzen_ledger::Account;
use batzen_merchant::rules::ABORTED;
use batzen_protocol::api::exchange::PurseMergeConfirmation;
use batzen_protocol::{Money, MoneySum};
use batzen_store::{Found, Store, Table};
use batzen_tables::exchange::{
    Coins, Deposits, KycProcesses, Melts, Prepared, PurseDeposits, PurseState, Purses, RecoupRefreshes,
    Recoups, Refunds, Reserves, WireTargetKey, WireTargets, Withdrawals,
};
use batzen_tables::merchant::{OrderDeposits, OrderRef, OrderRefunds, Orders};
use batzen_wallet::core::WalletState;
use batzen_wallet::core::purchase::PurchaseStage;
use batzen_wallet::core::purse::{IncomeStage, PartState, PayStage};
use batzen_wallet::core::state::OpKind;

use crate::audit;
use crate::host::{Step, Stop};
use crate::keys::{EXCHANGE_ACCOUNT, EXCHANGE_URL, Keys, limit, payto, start};
use crate::message::Context;
use crate::shop::{SHOP_ACCOUNT, SHOP_URL};
use crate::world::World;

fn each<T: Table>(store: &Store, mut visit: impl FnMut(Found<T>)) -> Step {
    let scanned = store.scan::<T>(|found| {
        visit(found);
        ControlFlow::Continue(())
    });
    scanned.map_err(|error| Stop::wrong(error.to_string()))
}

fn units(money: impl Into<MoneySum>) -> i128 {
    i128::try_from(money.into().units()).expect("amounts are far below the limit")
}

/// Checks a world at rest.
///
/// # Errors
/// The first failed check.
pub fn check(world: &mut World, context: &mut Context) -> Step {
    idle(world)?;
    world.ledger.check()?;
    sheet(world)?;
    let (store, denoms) = world.exchange.store().ok_or_else(|| Stop::wrong("the exchange is down"))?;
    coins(store, denoms)?;
    audit::whole(world, world.exchange.host.clock(context))?;
    wallets(world)?;
    purses(world, store)?;
    shop(world, store)?;
    limits(store, denoms, context)?;
    revocation(world, context)?;
    accounts(world)?;
    repetitions(world, context)?;
    // The repetitions must not have changed anything.
    sheet(world)
}

/// Checks that nothing is pending.
fn idle(world: &World) -> Step {
    for customer in &world.customers {
        if customer.is_thief || customer.is_idle() {
            continue;
        }
        let open: Vec<_> = customer
            .state
            .open_operations()
            .map(|operation| {
                format!("{} {} ({:?})", operation.kind.name(), operation.id, operation.last_error)
            })
            .collect();
        let orders = customer.orders.iter().filter(|order| !order.is_done).count();
        return Err(Stop::wrong(format!(
            "customer {} is not idle: {orders} orders, {}",
            customer.index,
            open.join(", ")
        )));
    }
    if !world.operator.is_idle() {
        return Err(Stop::wrong("the operator's order is not acknowledged"));
    }
    if world.bank.open_intents() > 0 {
        return Err(Stop::wrong("the bank has movements that are not decided"));
    }
    let machine = world.ledger.machine().ok_or_else(|| Stop::wrong("the ledger is down"))?;
    let counts = machine.machine().counts();
    if counts.pendings > 0 {
        return Err(Stop::wrong(format!("{} pending transfers outlive their time", counts.pendings)));
    }
    Ok(())
}

/// The credits and debits of the ledger's account with this name, less its headroom.
fn flow(world: &World, name: &str) -> Step<(i128, i128)> {
    let (_, chart) = world.bank.books().ok_or_else(|| Stop::wrong("the bank is down"))?;
    let machine = world.ledger.machine().ok_or_else(|| Stop::wrong("the ledger is down"))?;
    let found: Vec<Account> = machine.machine().lookup_accounts(&[chart.account_id(name)]);
    let Some(account) = found.first() else { return Ok((0, 0)) };
    if account.debits_pending + account.credits_pending > 0 {
        return Err(Stop::wrong(format!("account {name} has money set aside")));
    }
    let narrow = |sum: u128| i128::try_from(sum).expect("sums are far below the limit");
    Ok((narrow(account.credits_posted - chart.headroom()), narrow(account.debits_posted)))
}

/// By the bank's books, incoming money equals outgoing money plus the exchange's obligations and earnings.
fn sheet(world: &World) -> Step {
    let (bank_in, bank_out) = flow(world, EXCHANGE_ACCOUNT)?;
    let (store, denoms) = world.exchange.store().ok_or_else(|| Stop::wrong("the exchange is down"))?;
    let totals = totals(store, denoms).map_err(|error| Stop::wrong(format!("the sheet: {error}")))?;
    let (bank, _) = world.bank.books().ok_or_else(|| Stop::wrong("the bank is down"))?;
    let histories = history_flow(bank, EXCHANGE_ACCOUNT).map_err(|error| Stop::wrong(error.to_string()))?;
    let shown = (units(histories.incoming_with_reserve_pub), units(histories.outgoing_transfers));
    if shown != (bank_in, bank_out) {
        return Err(Stop::wrong(format!(
            "the bank's histories show {shown:?}, its ledger has moved {:?}",
            (bank_in, bank_out)
        )));
    }
    let right = bank_out + totals.held().into_iter().map(units).sum::<i128>();
    if bank_in != right || !totals.conserved() {
        return Err(Stop::wrong(format!(
            "the sheet is not conserved: bank_in {bank_in}, bank_out {bank_out}, {totals:?}"
        )));
    }
    if (units(totals.wired_in), units(totals.wired_out)) != (bank_in, bank_out) {
        return Err(Stop::wrong("bank and exchange differ about what was transferred"));
    }
    Ok(())
}

/// Nobody who is not identified has withdrawn more than the limit.
fn limits(store: &Store, denoms: &DenomTable, context: &Context) -> Step {
    if !context.swarm.identifies {
        return Ok(());
    }
    let (mut origins, mut withdrawn) = (BTreeMap::new(), BTreeMap::new());
    each::<Reserves>(store, |found| {
        origins.insert(found.key.reserve_pub, found.row.origin);
    })?;
    each::<Withdrawals>(store, |found| {
        let origin = origins.get(&found.key.reserve_pub).copied().flatten();
        if let (Some(origin), Some(terms)) = (origin, denoms.get(found.row.denom)) {
            *withdrawn.entry(origin).or_insert(0) += units(terms.value);
        }
    })?;
    each::<KycProcesses>(store, |found| {
        if found.row.expiration > start() {
            withdrawn.remove(&found.key.h_payto);
        }
    })?;
    match withdrawn.into_iter().find(|(_, sum)| *sum > units(limit())) {
        Some((origin, sum)) => {
            Err(Stop::wrong(format!("{origin} has withdrawn {sum}, but was not identified")))
        }
        None => Ok(()),
    }
}

/// Every purse is decided. What a wallet says it has paid another says it has received, once.
fn purses(world: &World, store: &Store) -> Step {
    let mut open = 0;
    each::<Purses>(store, |found| open += usize::from(found.row.state == PurseState::Open))?;
    if open > 0 {
        return Err(Stop::wrong(format!("{open} purses are still open")));
    }
    let (mut paid, mut received) = (BTreeMap::new(), BTreeMap::new());
    let operations = world.customers.iter().flat_map(|customer| customer.state.operations.values());
    for operation in operations {
        match &operation.kind {
            OpKind::PursePayment(record) if record.stage == PayStage::Done => {
                *paid.entry(record.purse_pub).or_insert(0) += 1;
            }
            OpKind::PurseIncome(record) if record.stage == IncomeStage::Done => {
                *received.entry(record.purse_pub).or_insert(0) += 1;
            }
            _ => {}
        }
    }
    let has_thief = world.customers.iter().any(|customer| customer.is_thief);
    if let Some((purse_pub, times)) = received.iter().find(|(_, times)| **times > 1) {
        return Err(Stop::wrong(format!("purse {purse_pub} was received {times} times")));
    }
    match paid.keys().find(|purse_pub| !received.contains_key(*purse_pub)) {
        Some(purse_pub) if !has_thief => {
            Err(Stop::wrong(format!("purse {purse_pub} was paid, but nobody has received it")))
        }
        _ => Ok(()),
    }
}

/// An order in the shop's books, in units of its currency.
#[derive(Clone, Copy, Debug, Default)]
struct OrderBooks {
    /// The sum of its coins that were not given back for want of others.
    paid: i128,
    /// The refunds that the exchange has confirmed.
    refunded: i128,
    /// The refunds that it may have made, or not.
    approved: i128,
}

impl OrderBooks {
    /// Returns whether they agree with what the exchange has taken for the order.
    fn explain(&self, taken: i128) -> bool {
        let most = self.paid - self.refunded;
        (most - self.approved..=most).contains(&taken)
    }
}

/// Checks that the shop's paid orders have taken what their coins paid, and the others nothing, and that the receipts of
/// wallets are of paid orders.
fn shop(world: &World, exchange: &Store) -> Step {
    let shop = world.shop.store().ok_or_else(|| Stop::wrong("the shop is down"))?;
    let mut taken: BTreeMap<HashCode, i128> = BTreeMap::new();
    each::<Deposits>(exchange, |found| {
        *taken.entry(found.key.h_contract_terms).or_default() += units(found.row.amount);
    })?;
    each::<Refunds>(exchange, |found| {
        *taken.entry(found.key.h_contract_terms).or_default() -= units(found.row.amount);
    })?;
    let (mut books, mut booked): (BTreeMap<OrderRef, OrderBooks>, _) = (BTreeMap::new(), BTreeSet::new());
    each::<OrderDeposits>(shop, |found| {
        booked.insert((found.key.order, found.key.coin_pub));
        books.entry(found.key.order).or_default().paid += units(found.row.amount);
    })?;
    // A coin that may have been deposited is given back, too.
    each::<OrderRefunds>(shop, |found| {
        if !booked.contains(&(found.key.order, found.key.coin_pub)) {
            return;
        }
        let books = books.entry(found.key.order).or_default();
        let amount = units(found.row.amount);
        match (found.key.rtransaction_id, found.row.exchange_sig) {
            (ABORTED, _) => books.paid -= amount,
            (_, Some(_)) => books.refunded += amount,
            (_, None) => books.approved += amount,
        }
    })?;
    let (mut wrong, mut paid) = (None, BTreeSet::new());
    each::<Orders>(shop, |found| {
        let order_id = found.row.order_id;
        let contract = found.row.h_contract.and_then(|h_contract| taken.get(&h_contract));
        let taken = contract.copied().unwrap_or_default();
        let books = books.get(&found.key.order).copied().unwrap_or_default();
        let (is_paid, amount) = (found.row.paid.is_some(), units(found.row.amount));
        if !books.explain(taken) || is_paid != (books.paid >= amount) || !is_paid && taken != 0 {
            wrong = Some(format!(
                "order {order_id} of {amount}, paid: {is_paid}, has taken {taken} for {books:?}"
            ));
        }
        if is_paid {
            paid.insert(order_id);
        }
    })?;
    for operation in world.customers.iter().flat_map(|customer| customer.state.operations.values()) {
        if let OpKind::Purchase(record) = &operation.kind
            && record.stage == PurchaseStage::Done
            && !paid.contains(&record.terms().order_id)
        {
            wrong = Some(format!("order {} has a receipt, but is not paid", record.terms().order_id));
        }
    }
    wrong.map_or(Ok(()), |what| Err(Stop::Wrong(what)))
}

/// The wallet's record of the exchange shows the revocation, and no coin of the revoked denomination has value left.
fn revocation(world: &World, context: &Context) -> Step {
    let Some(index) = context.revoked else { return Ok(()) };
    let h_denom_pub = Keys::get().denoms[index].h;
    for customer in &world.customers {
        let exchange =
            customer.state.exchange(EXCHANGE_URL).map_err(|error| Stop::wrong(error.to_string()))?;
        if !exchange.denoms.get(&h_denom_pub).is_some_and(|denom| denom.revoked) {
            return Err(Stop::wrong(format!("customer {} knows of no revocation", customer.index)));
        }
        let mut coins = customer.state.coins.values();
        let left = coins.find(|coin| coin.h_denom_pub == h_denom_pub && !coin.remaining.is_zero());
        if let Some(coin) = left.filter(|_| !customer.is_thief) {
            return Err(Stop::wrong(format!("revoked coin {} keeps {}", coin.coin_pub, coin.remaining)));
        }
    }
    Ok(())
}

/// No coin has paid more than its value, according to the rows that debit it.
fn coins(store: &Store, denoms: &DenomTable) -> Step {
    let mut taken: BTreeMap<EddsaPublicKey, i128> = BTreeMap::new();
    let mut take = |coin_pub: EddsaPublicKey, amount: i128| *taken.entry(coin_pub).or_default() += amount;
    each::<Deposits>(store, |found| take(found.key.coin_pub, units(found.row.amount)))?;
    each::<Melts>(store, |found| take(found.key.coin_pub, units(found.row.amount)))?;
    each::<Recoups>(store, |found| take(found.key.coin_pub, units(found.row.amount)))?;
    each::<RecoupRefreshes>(store, |found| {
        take(found.key.coin_pub, units(found.row.amount));
        take(found.row.old_coin_pub, -units(found.row.amount));
    })?;
    each::<PurseDeposits>(store, |found| {
        let amount = if found.row.refunded { 0 } else { units(found.row.amount) };
        take(found.key.coin_pub, amount);
    })?;
    let mut refunds = Vec::new();
    each::<Refunds>(store, |found| refunds.push((found.key.coin_pub, units(found.row.amount))))?;
    let mut rows = Vec::new();
    each::<Coins>(store, |found| {
        rows.push((found.key.coin_pub, found.row.denom, units(found.row.remaining)));
    })?;
    let terms = |serial| denoms.get(serial).ok_or_else(|| Stop::wrong("a coin of an unknown denomination"));
    let serials: BTreeMap<_, _> = rows.iter().map(|(coin_pub, serial, _)| (*coin_pub, *serial)).collect();
    for (coin_pub, amount) in refunds {
        let serial = serials.get(&coin_pub).ok_or_else(|| Stop::wrong("a refund of an unknown coin"))?;
        *taken.entry(coin_pub).or_default() -= amount - units(terms(*serial)?.fee_refund);
    }
    for (coin_pub, serial, remaining) in rows {
        let value = units(terms(serial)?.value);
        let taken = taken.get(&coin_pub).copied().unwrap_or_default();
        if taken > value || value - taken != remaining {
            return Err(Stop::wrong(format!(
                "coin {coin_pub} of {value} gave {taken} and has {remaining} left"
            )));
        }
    }
    Ok(())
}

/// Wallets and exchange agree on the value of every coin, and every signed coin is in a wallet.
fn wallets(world: &World) -> Step {
    let (store, denoms) = world.exchange.store().ok_or_else(|| Stop::wrong("the exchange is down"))?;
    let mut held = 0;
    let has_thief = world.customers.iter().any(|customer| customer.is_thief);
    for customer in &world.customers {
        for coin in customer.state.coins.values() {
            let denom = Keys::get().denom(&coin.h_denom_pub);
            let value = denom.ok_or_else(|| Stop::wrong("a coin of an unknown denomination"))?.value;
            held += units(value);
            let row = batzen_exchange::reads::read::coin(store, coin.coin_pub)
                .map_err(|error| Stop::wrong(error.to_string()))?;
            let remaining = row.map_or(value, |row| row.remaining);
            // Dust that is worth no refresh stays as doubtful as its purse was, until it pays again.
            let most = remaining.checked_add(doubt(&customer.state, &coin.coin_pub));
            let agrees = most.is_ok_and(|most| (remaining..=most).contains(&coin.remaining));
            if !customer.is_thief && !agrees {
                return Err(Stop::wrong(format!(
                    "coin {} is worth {} to customer {} and {remaining} to the exchange",
                    coin.coin_pub, coin.remaining, customer.index
                )));
            }
        }
    }
    let totals = totals(store, denoms).map_err(|error| Stop::wrong(error.to_string()))?;
    let issued = units(totals.issued);
    // With double spending, a wallet may be unable to finish operations that would give it coins.
    if held > issued || held < issued && !has_thief {
        return Err(Stop::wrong(format!("coins of {issued} were signed, wallets have {held}")));
    }
    Ok(())
}

/// The part of a coin of which the wallet cannot know whether it is back from purses that have expired.
fn doubt(state: &WalletState, coin_pub: &EddsaPublicKey) -> Money {
    let payments = state.operations.values().filter_map(|operation| match &operation.kind {
        OpKind::PursePayment(record) => Some(record),
        _ => None,
    });
    let parts = payments.flat_map(|record| &record.coins);
    let doubtful = parts.filter(|part| part.coin_pub == *coin_pub && part.state == PartState::Doubtful);
    doubtful
        .fold(Money::ZERO, |sum, part| sum.checked_add(part.amount).expect("a wallet's coins fit an amount"))
}

/// Every account has paid and received the expected amounts, each once.
fn accounts(world: &World) -> Step {
    let (store, _) = world.exchange.store().ok_or_else(|| Stop::wrong("the exchange is down"))?;
    let mut paid_out: BTreeMap<String, i128> = BTreeMap::new();
    let mut rows = Vec::new();
    each::<Prepared>(store, |found| rows.push(found.row))?;
    for row in rows {
        if row.finished.is_none() {
            return Err(Stop::wrong("a transfer is still open"));
        }
        let target = store.get::<WireTargets>(&WireTargetKey { h_payto: row.h_payto });
        let target = target.map_err(|error| Stop::wrong(error.to_string()))?;
        let target = target.ok_or_else(|| Stop::wrong("a transfer to an unknown account"))?;
        *paid_out.entry(target.row.payto_uri).or_default() += units(row.amount);
    }
    let mut names: Vec<(String, i128)> = world
        .customers
        .iter()
        .map(|customer| {
            let ordered = customer.orders.iter().map(|order| units(order.amount)).sum();
            (customer.account(), ordered)
        })
        .collect();
    let merchants = (0..world.merchants).map(crate::customer::merchant_account);
    names.extend(merchants.chain([SHOP_ACCOUNT.to_owned()]).map(|name| (name, 0)));
    for (name, ordered) in names {
        let (credits, debits) = flow(world, &name)?;
        let expected = paid_out.get(&payto(&name)).copied().unwrap_or_default();
        if debits != ordered {
            return Err(Stop::wrong(format!("{name} has ordered {ordered} and paid {debits}")));
        }
        if credits != expected {
            return Err(Stop::wrong(format!("{name} was to receive {expected} and has received {credits}")));
        }
    }
    Ok(())
}

/// An answer without the time at which it was signed, if that is the time of each answer.
fn lasting(body: &[u8]) -> Cow<'_, [u8]> {
    match serde_json::from_slice::<PurseMergeConfirmation>(body) {
        Ok(confirmation) => Cow::Owned(confirmation.merge_amount.to_string().into_bytes()),
        Err(_) => Cow::Borrowed(body),
    }
}

/// Every acknowledged request gets the same answer when it is repeated: nothing acknowledged is lost.
fn repetitions(world: &mut World, context: &mut Context) -> Step {
    let mut told = Vec::new();
    for customer in &mut world.customers {
        told.append(&mut customer.acknowledged);
    }
    told.append(&mut world.exchange.acknowledged);
    for (request, response) in told {
        let again = if request.url.starts_with(crate::keys::EXCHANGE_URL) {
            world.exchange.answer(context, &request)?
        } else if request.url.starts_with(SHOP_URL) {
            let World { shop, exchange, .. } = world;
            shop.answer(context, &request, &mut |context, asked| exchange.answer(context, asked))?
        } else {
            world.bank.answer(context, &request)?
        };
        let is_same = again.status == response.status && lasting(&again.body) == lasting(&response.body);
        if !is_same {
            return Err(Stop::wrong(format!(
                "{} {} was answered {} {}, and is answered now {} {}",
                request.method.name(),
                request.url,
                response.status,
                String::from_utf8_lossy(&response.body),
                again.status,
                String::from_utf8_lossy(&again.body)
            )));
        }
    }
    Ok(())
}
