//! The rules against a naive model: random commands, in batches of random sizes, must be decided alike, and the rows
//! must be what the model remembers. Names and amounts come from tiny sets, so that everything collides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, WireSalt};
use batzen_engine::Batcher;
use batzen_merchant::rules::{
    Abort, ApproveRefund, ChangeInstance, Claim, ClaimPayment, ClaimedCoin, Command, CreateInstance,
    CreateOrder, DeleteInstance, Insufficient, MerchantRules, NewAccount, PurgeOrders, RecordDeposits,
    Refusal, ReleasePayment, Replay, Session, Settle,
};
use batzen_protocol::{Money, Timestamp};
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;
use batzen_tables::merchant::{
    CoinReturns, InstanceAccounts, InstanceRow, Instances, OrderDepositRow, OrderDeposits, OrderKey,
    OrderRefunds, OrderRow, OrderSessions, Orders, PaidSessionKey, PaidSessions, PaymentClaims, order_ref,
    purchase_ref,
};
use proptest::prelude::*;

use crate::rows::{instance_row, order_row};

/// The price of every order. Each coin is worth its number, and costs no fee.
const PRICE: u64 = 3;

#[derive(Clone, Debug)]
enum Step {
    Create { shop: u8, name: u8, accounts: u8 },
    Change { shop: u8, name: u8, accounts: u8 },
    Delete { shop: u8 },
    Purge { shop: u8 },
    Order { shop: u8, id: u8, request: u8 },
    Claim { shop: u8, id: u8, nonce: u8 },
    Deposit { shop: u8, id: u8, nonce: u8, coins: Vec<u8> },
    Settle { shop: u8, id: u8, session: Option<u8> },
    Replay { shop: u8, id: u8, session: u8 },
    ApproveRefund { shop: u8, id: u8, total: u64, is_allowed: bool },
    Abort { shop: u8, id: u8, coins: Vec<u8> },
    // A payment with one of two sets of coins begins, which lasts or is over at once.
    ClaimPayment { shop: u8, id: u8, set: u8, lasts: bool },
    ReleasePayment { shop: u8, id: u8, set: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let (shop, id, few) = (0..2_u8, 0..3_u8, 0..3_u8);
    let order = || (0..2_u8, 0..3_u8);
    prop_oneof![
        2 => (shop.clone(), 0..2_u8, few.clone()).prop_map(|(shop, name, accounts)| Step::Create { shop, name, accounts }),
        2 => (shop.clone(), 0..2_u8, few.clone()).prop_map(|(shop, name, accounts)| Step::Change { shop, name, accounts }),
        1 => shop.clone().prop_map(|shop| Step::Delete { shop }),
        1 => shop.prop_map(|shop| Step::Purge { shop }),
        4 => (order(), 0..2_u8).prop_map(|((shop, id), request)| Step::Order { shop, id, request }),
        4 => (order(), 0..2_u8).prop_map(|((shop, id), nonce)| Step::Claim { shop, id, nonce }),
        4 => (order(), 0..2_u8, prop::collection::vec(1..4_u8, 0..3))
            .prop_map(|((shop, id), nonce, coins)| Step::Deposit { shop, id, nonce, coins }),
        4 => (order(), prop::option::of(few.clone()))
            .prop_map(|((shop, id), session)| Step::Settle { shop, id, session }),
        2 => (order(), id).prop_map(|((shop, id), session)| Step::Replay { shop, id, session }),
        3 => (order(), 0..5_u64, prop::bool::weighted(0.8))
            .prop_map(|((shop, id), total, is_allowed)| Step::ApproveRefund { shop, id, total, is_allowed }),
        1 => (order(), prop::collection::vec(1..4_u8, 0..3))
            .prop_map(|((shop, id), coins)| Step::Abort { shop, id, coins }),
        3 => (order(), 0..2_u8, any::<bool>())
            .prop_map(|((shop, id), set, lasts)| Step::ClaimPayment { shop, id, set, lasts }),
        1 => (order(), 0..2_u8).prop_map(|((shop, id), set)| Step::ReleasePayment { shop, id, set }),
    ]
}

fn shop_id(shop: u8) -> String {
    format!("shop{shop}")
}

fn url(shop: u8, id: u8) -> Option<String> {
    // The first two orders give the same.
    (id < 2).then(|| format!("https://shop{shop}.example/"))
}

fn money(value: u64) -> Money {
    Money::new(value, 0).unwrap()
}

fn instance(name: u8, key: u8) -> InstanceRow {
    instance_row(&format!("name{name}"), key)
}

/// Accounts 0 to `count`, with salts of this command.
fn accounts(count: u8, turn: u8) -> Vec<NewAccount> {
    let account = |n: u8| NewAccount {
        payto_uri: format!("payto://x-taler-bank/localhost/{n}"),
        salt: WireSalt::from_bytes([turn; 16]),
        h_wire: HashCode::from_bytes([n ^ (turn << 2); 64]),
    };
    (0..count).map(account).collect()
}

fn hash(shop: u8, id: u8, nonce: u8) -> HashCode {
    let mut bytes = [nonce; 64];
    (bytes[0], bytes[1]) = (shop, id);
    HashCode::from_bytes(bytes)
}

fn order(shop: u8, id: u8, request: u8, row_id: u64) -> OrderRow {
    OrderRow {
        h_request: HashCode::from_bytes([request; 64]),
        amount: money(PRICE),
        fulfillment_url: url(shop, id),
        ..order_row(&shop_id(shop), id, row_id, format!("terms {request}"))
    }
}

fn deposit(coin: u8) -> (EddsaPublicKey, OrderDepositRow) {
    let row = OrderDepositRow {
        exchange_url: "http://e/".to_owned(),
        amount: money(coin.into()),
        deposit_fee: Money::ZERO,
        refund_fee: Money::ZERO,
        wire_fee: Money::ZERO,
        exchange_time: Timestamp::ZERO,
        exchange_pub: EddsaPublicKey::from_bytes([1; 32]),
        exchange_sig: EddsaSignature::from_bytes([1; 64]),
    };
    (EddsaPublicKey::from_bytes([coin; 32]), row)
}

fn claimed(coin: u8) -> ClaimedCoin {
    let (coin_pub, OrderDepositRow { amount, exchange_url, .. }) = deposit(coin);
    ClaimedCoin { coin_pub, amount, exchange_url }
}

#[derive(Clone, Debug, Default)]
struct Order {
    request: u8,
    nonce: Option<u8>,
    coins: BTreeSet<u8>,
    is_paid: bool,
    sessions: BTreeSet<u8>,
    /// Coins that were given up.
    aborted: BTreeSet<u8>,
    /// The refunds that the shop approved: the coin and the amount of each part.
    approved: Vec<(u8, u64)>,
    /// The set of coins of the payment that is under way, and whether it lasts.
    claim: Option<(u8, bool)>,
    /// Coins that exchanges are to give back.
    returns: BTreeSet<u8>,
}

/// The coins of one of the two sets that payments begin with.
fn coins_of(set: u8) -> &'static [u8] {
    if set == 0 { &[1] } else { &[2, 3] }
}

impl Order {
    /// Returns the refunded amount of a coin.
    fn refunded(&self, coin: u8) -> u64 {
        let aborted = if self.aborted.contains(&coin) { u64::from(coin) } else { 0 };
        aborted + self.approved.iter().filter(|(of, _)| *of == coin).map(|(_, amount)| amount).sum::<u64>()
    }

    /// Returns the value of the coins, refunded or not.
    fn deposited(&self) -> u64 {
        self.coins.iter().map(|coin| u64::from(*coin)).sum()
    }

    /// Returns the remainder of a coin.
    fn left(&self, coin: u8) -> u64 {
        u64::from(coin) - self.refunded(coin)
    }

    fn approved(&self) -> u64 {
        self.approved.iter().map(|(_, amount)| amount).sum()
    }
}

#[derive(Clone, Debug, Default)]
struct Shop {
    name: u8,
    key: u8,
    is_deleted: bool,
    /// The salt's turn and whether it is active, by account.
    accounts: BTreeMap<u8, (u8, bool)>,
}

/// The naive backend.
#[derive(Clone, Debug, Default)]
struct Model {
    shops: BTreeMap<u8, Shop>,
    orders: BTreeMap<(u8, u8), Order>,
    /// The latest order by which a session bought something at a shop.
    bought: BTreeMap<(u8, u8), u8>,
    turn: u8,
}

impl Model {
    fn set_accounts(shop: &mut Shop, count: u8, turn: u8) {
        for (n, account) in &mut shop.accounts {
            account.1 = *n < count;
        }
        for n in 0..count {
            shop.accounts.entry(n).or_insert((turn, true));
        }
    }

    fn active(shop: &Shop) -> u8 {
        u8::try_from(shop.accounts.values().filter(|account| account.1).count()).unwrap()
    }

    fn bind(&mut self, shop: u8, id: u8, session: u8) {
        self.orders.get_mut(&(shop, id)).unwrap().sessions.insert(session);
        if url(shop, id).is_some() {
            self.bought.insert((shop, session), id);
        }
    }

    fn decide(&mut self, step: &Step, turn: u8) -> Result<(), Refusal> {
        match *step {
            Step::Create { shop, name, accounts } => match self.shops.get(&shop) {
                Some(known) if known.is_deleted => Err(Refusal::InstanceDeleted),
                Some(known) if known.name == name && Self::active(known) == accounts => Ok(()),
                Some(_) => Err(Refusal::InstanceExists),
                None => {
                    let mut new = Shop { name, key: turn, ..Shop::default() };
                    Self::set_accounts(&mut new, accounts, turn);
                    self.shops.insert(shop, new);
                    Ok(())
                }
            },
            Step::Change { shop, name, accounts } => {
                let known = self.shops.get_mut(&shop).ok_or(Refusal::InstanceUnknown)?;
                if known.is_deleted {
                    return Err(Refusal::InstanceDeleted);
                }
                known.name = name;
                Self::set_accounts(known, accounts, turn);
                Ok(())
            }
            Step::Delete { shop } => {
                self.shops.get_mut(&shop).ok_or(Refusal::InstanceUnknown)?.is_deleted = true;
                Ok(())
            }
            Step::Purge { shop } => {
                let known = self.shops.get(&shop).ok_or(Refusal::InstanceUnknown)?;
                if !known.is_deleted {
                    return Err(Refusal::OrdersLeft);
                }
                self.orders.retain(|(of, _), _| *of != shop);
                self.bought.retain(|(of, _), _| *of != shop);
                Ok(())
            }
            Step::Order { shop, id, request } => {
                if let Some(known) = self.orders.get(&(shop, id)) {
                    return if known.request == request { Ok(()) } else { Err(Refusal::OrderExists) };
                }
                match self.shops.get(&shop) {
                    None => Err(Refusal::InstanceUnknown),
                    Some(known) if known.is_deleted => Err(Refusal::InstanceDeleted),
                    Some(_) => {
                        self.orders.insert((shop, id), Order { request, ..Order::default() });
                        Ok(())
                    }
                }
            }
            Step::Claim { shop, id, nonce } => {
                let known = self.orders.get_mut(&(shop, id)).ok_or(Refusal::OrderUnknown)?;
                match known.nonce {
                    Some(other) if other == nonce => Ok(()),
                    Some(_) => Err(Refusal::AlreadyClaimed),
                    // Commands offer the terms of request 0.
                    None if known.request != 0 => Err(Refusal::OrderChanged),
                    None => {
                        known.nonce = Some(nonce);
                        Ok(())
                    }
                }
            }
            Step::Deposit { shop, id, nonce, ref coins } => {
                let known = self.orders.get_mut(&(shop, id)).ok_or(Refusal::OrderUnknown)?;
                if known.nonce != Some(nonce) {
                    return Err(Refusal::OtherContract);
                }
                let new: Vec<u8> = coins.iter().copied().filter(|coin| !known.coins.contains(coin)).collect();
                known.coins.extend(&new);
                // The order does not take money twice.
                let surplus = new.into_iter().filter(|coin| known.is_paid || known.aborted.contains(coin));
                let surplus: Vec<u8> = surplus.collect();
                known.aborted.extend(&surplus);
                known.returns.extend(&surplus);
                Ok(())
            }
            Step::ClaimPayment { shop, id, set, lasts } => {
                let known = self.orders.get_mut(&(shop, id)).ok_or(Refusal::OrderUnknown)?;
                match known.claim {
                    _ if known.is_paid => Err(Refusal::Paid),
                    Some((other, true)) if other != set => Err(Refusal::PaymentUnderWay),
                    before => {
                        // Exchanges may have the coins of a payment that ended without an answer.
                        let lost = before.into_iter().flat_map(|(other, _)| coins_of(other));
                        let lost = lost.filter(|coin| !coins_of(set).contains(coin));
                        let lost: Vec<u8> =
                            lost.copied().filter(|coin| !known.coins.contains(coin)).collect();
                        known.aborted.extend(&lost);
                        known.returns.extend(&lost);
                        known.claim = Some((set, lasts));
                        Ok(())
                    }
                }
            }
            Step::ReleasePayment { shop, id, set } => {
                if let Some(known) = self.orders.get_mut(&(shop, id)) {
                    known.claim = known.claim.filter(|(other, _)| *other != set);
                }
                Ok(())
            }
            Step::Settle { shop, id, session } => {
                let known = self.orders.get_mut(&(shop, id)).ok_or(Refusal::OrderUnknown)?;
                if known.nonce.is_none() {
                    return Err(Refusal::Unpaid);
                }
                let left: u64 = known.coins.iter().map(|coin| known.left(*coin)).sum();
                if !known.is_paid && known.deposited() < PRICE {
                    return Err(Refusal::Insufficient(Insufficient::Payment));
                }
                if !known.is_paid && left < PRICE {
                    return Err(Refusal::Insufficient(Insufficient::Refunded));
                }
                if !known.is_paid {
                    known.claim = None;
                }
                known.is_paid = true;
                if let Some(session) = session {
                    self.bind(shop, id, session);
                }
                Ok(())
            }
            Step::Replay { shop, id, session } => {
                let known = self.orders.get(&(shop, id)).ok_or(Refusal::OrderUnknown)?;
                if !known.is_paid {
                    return Err(Refusal::Unpaid);
                }
                self.bind(shop, id, session);
                Ok(())
            }
            Step::ApproveRefund { shop, id, total, is_allowed } => {
                let known = self.orders.get_mut(&(shop, id)).ok_or(Refusal::OrderUnknown)?;
                let mut more = total.saturating_sub(known.approved());
                let left: u64 = known.coins.iter().map(|coin| known.left(*coin)).sum();
                match (known.is_paid, total > PRICE || more > left) {
                    (false, _) => return Err(Refusal::Unpaid),
                    (true, true) => return Err(Refusal::RefundInconsistent),
                    (true, false) if more > 0 && !is_allowed => return Err(Refusal::RefundNotAllowed),
                    (true, false) => {}
                }
                // All deposits are of the same time, so the coins' keys decide.
                for coin in known.coins.clone() {
                    let amount = known.left(coin).min(more);
                    if amount > 0 {
                        known.approved.push((coin, amount));
                        more -= amount;
                    }
                }
                Ok(())
            }
            Step::Abort { shop, id, ref coins } => {
                let known = self.orders.get_mut(&(shop, id)).ok_or(Refusal::OrderUnknown)?;
                if known.is_paid {
                    return Err(Refusal::Paid);
                }
                known.aborted.extend(coins);
                Ok(())
            }
        }
    }
}

fn session(number: u8) -> Session {
    Session { id: format!("session{number}") }
}

/// The command of a step. `turn` distinguishes what is drawn for it.
fn command(step: &Step, turn: u8) -> Command {
    match *step {
        Step::Create { shop, name, accounts: count } => {
            let accounts = accounts(count, turn);
            CreateInstance { id: shop_id(shop), row: instance(name, turn), accounts }.into()
        }
        Step::Change { shop, name, accounts: count } => {
            let accounts = accounts(count, turn);
            ChangeInstance { id: shop_id(shop), row: instance(name, turn), accounts }.into()
        }
        Step::Delete { shop } => DeleteInstance { id: shop_id(shop), purge: false }.into(),
        Step::Purge { shop } => {
            let orders = (0..3).map(|id: u8| order_ref(&shop_id(shop), &id.to_string())).collect();
            PurgeOrders { id: shop_id(shop), orders }.into()
        }
        Step::Order { shop, id, request } => {
            let order = order_ref(&shop_id(shop), &id.to_string());
            CreateOrder { order, row: self::order(shop, id, request, turn.into()), locks: Vec::new() }.into()
        }
        Step::Claim { shop, id, nonce } => Claim {
            order: order_ref(&shop_id(shop), &id.to_string()),
            offered: "terms 0".to_owned(),
            nonce: nonce.to_string(),
            terms: format!("terms of {nonce}"),
            h_contract: hash(shop, id, nonce),
        }
        .into(),
        Step::Deposit { shop, id, nonce, ref coins } => {
            let order = order_ref(&shop_id(shop), &id.to_string());
            let deposits = coins.iter().map(|coin| deposit(*coin)).collect();
            RecordDeposits { order, h_contract: hash(shop, id, nonce), deposits }.into()
        }
        Step::ClaimPayment { shop, id, set, lasts } => ClaimPayment {
            order: order_ref(&shop_id(shop), &id.to_string()),
            coins: coins_of(set).iter().map(|coin| claimed(*coin)).collect(),
            until: if lasts { Timestamp::NEVER } else { Timestamp::ZERO },
        }
        .into(),
        Step::ReleasePayment { shop, id, set } => ReleasePayment {
            order: order_ref(&shop_id(shop), &id.to_string()),
            coins: coins_of(set).iter().map(|coin| deposit(*coin).0).collect(),
        }
        .into(),
        Step::Settle { shop, id, session: number } => Settle {
            order: order_ref(&shop_id(shop), &id.to_string()),
            instance: shop_id(shop),
            fulfillment_url: url(shop, id),
            session: number.map(session),
            products: Vec::new(),
            hooks: Vec::new(),
        }
        .into(),
        Step::Replay { shop, id, session: number } => Replay {
            order: order_ref(&shop_id(shop), &id.to_string()),
            instance: shop_id(shop),
            fulfillment_url: url(shop, id),
            session: session(number),
        }
        .into(),
        Step::ApproveRefund { shop, id, total, is_allowed } => ApproveRefund {
            order: order_ref(&shop_id(shop), &id.to_string()),
            total: money(total),
            reason: "broken".to_owned(),
            since: Timestamp::ZERO,
            until: if is_allowed { Timestamp::NEVER } else { Timestamp::ZERO },
            hooks: Vec::new(),
        }
        .into(),
        Step::Abort { shop, id, ref coins } => {
            let coins = coins.iter().map(|coin| (deposit(*coin).0, money((*coin).into()))).collect();
            Abort { order: order_ref(&shop_id(shop), &id.to_string()), coins }.into()
        }
    }
}

/// Compares all rows with the model.
fn compare(store: &Store, model: &Model) {
    let shops = store.all::<Instances>().unwrap();
    assert_eq!(shops.len(), model.shops.len());
    for (n, shop) in &model.shops {
        let row = &shops.iter().find(|found| found.key.id == shop_id(*n)).unwrap().row;
        assert_eq!(
            (&row.name, row.merchant_priv.is_none()),
            (&format!("name{}", shop.name), shop.is_deleted)
        );
        assert_eq!(row.merchant_pub, EddsaPublicKey::from_bytes([shop.key; 32]), "keys never change");
        let mut found: Vec<_> = store
            .lookup::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, &shop_id(*n))
            .unwrap()
            .into_iter()
            .map(|found| (found.row.payto_uri, found.row.salt, found.row.active))
            .collect();
        found.sort();
        let expected: Vec<_> = shop
            .accounts
            .iter()
            .map(|(account, (turn, active))| {
                let payto = format!("payto://x-taler-bank/localhost/{account}");
                (payto, WireSalt::from_bytes([*turn; 16]), *active)
            })
            .collect();
        assert_eq!(found, expected);
    }
    let orders = store.all::<Orders>().unwrap();
    assert_eq!(orders.len(), model.orders.len());
    for ((shop, id), order) in &model.orders {
        let reference = order_ref(&shop_id(*shop), &id.to_string());
        let row = &orders.iter().find(|found| found.key.order == reference).unwrap().row;
        assert_eq!(row.h_request, HashCode::from_bytes([order.request; 64]));
        assert_eq!(row.nonce, order.nonce.map(|nonce| nonce.to_string()));
        assert_eq!(row.h_contract, order.nonce.map(|nonce| hash(*shop, *id, nonce)));
        assert_eq!(row.paid.is_some(), order.is_paid);
        let coins = store.lookup::<OrderDeposits>(OrderDeposits::BY_ORDER, &reference).unwrap();
        assert_eq!(coins.len(), order.coins.len());
        let sessions = store.lookup::<OrderSessions>(OrderSessions::BY_ORDER, &reference).unwrap();
        assert_eq!(sessions.len(), order.sessions.len());
        assert_eq!(row.refund_approved, money(order.approved()));
        let refunds = store.lookup::<OrderRefunds>(OrderRefunds::BY_ORDER, &reference).unwrap();
        let mut refunds: Vec<_> =
            refunds.into_iter().map(|found| (found.key.coin_pub, found.row.amount)).collect();
        let aborted = order.aborted.iter().map(|coin| (*coin, u64::from(*coin)));
        let expected = aborted.chain(order.approved.iter().copied());
        let mut expected: Vec<_> = expected.map(|(coin, amount)| (deposit(coin).0, money(amount))).collect();
        refunds.sort();
        expected.sort();
        assert_eq!(refunds, expected);
        let claim = store.get::<PaymentClaims>(&OrderKey { order: reference }).unwrap();
        let claim = claim.map(|found| found.row.coins.0);
        let keys_of = |coins: &[u8]| coins.iter().map(|coin| deposit(*coin).0).collect::<Vec<_>>();
        assert_eq!(claim, order.claim.map(|(set, _)| keys_of(coins_of(set))));
        let returns = store.lookup::<CoinReturns>(CoinReturns::BY_ORDER, &reference).unwrap();
        let mut returns: Vec<_> = returns.into_iter().map(|found| found.key.coin_pub).collect();
        returns.sort();
        assert_eq!(returns, keys_of(&order.returns.iter().copied().collect::<Vec<_>>()));
    }
    let claims = model.orders.values().filter(|order| order.claim.is_some()).count();
    assert_eq!(store.count::<PaymentClaims>().unwrap(), claims as u64);
    let returns = model.orders.values().map(|order| order.returns.len()).sum::<usize>();
    assert_eq!(store.count::<CoinReturns>().unwrap(), returns as u64);
    assert_eq!(store.count::<PaidSessions>().unwrap(), model.bought.len() as u64);
    for ((shop, number), id) in &model.bought {
        let url = url(*shop, *id).unwrap();
        let purchase = purchase_ref(&shop_id(*shop), &session(*number).id, &url);
        let found = store.get::<PaidSessions>(&PaidSessionKey { purchase }).unwrap().unwrap();
        assert_eq!(found.row.order_id, id.to_string());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rules_agree_with_the_model(
        batches in prop::collection::vec(prop::collection::vec(step(), 1..6), 1..16),
    ) {
        let store = Store::new(MemoryBackend::new());
        let batcher = Batcher::new(Arc::new(MerchantRules::default()), store.clone());
        let clock = || Timestamp::from_secs(1);
        let mut model = Model::default();
        for batch in batches {
            let mut commands = Vec::new();
            let mut expected = Vec::new();
            for step in &batch {
                model.turn += 1;
                commands.push(command(step, model.turn));
                expected.push(model.decide(step, model.turn));
            }
            let verdicts = batcher.run(&commands, &clock).unwrap();
            let verdicts: Vec<_> = verdicts.into_iter().map(|verdict| verdict.map(drop)).collect();
            prop_assert_eq!(verdicts, expected, "{:?}", batch);
            compare(&store, &model);
        }
    }
}
