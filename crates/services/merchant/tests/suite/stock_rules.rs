//! The rules of stock against a naive model. At every time, a product counts exactly the units that carts and unpaid
//! orders hold, and those in paid orders.

use std::collections::BTreeMap;
use std::sync::Arc;

use batzen_crypto::HashCode;
use batzen_engine::Batcher;
use batzen_merchant::rules::{
    ChangeProduct, Claim, Command, CreateInstance, CreateOrder, CreateProduct, DeleteOrder, DeleteProduct,
    GRACE, Held, LockProduct, MerchantRules, Refusal, ReleaseStock, Settle,
};
use batzen_protocol::{Money, Timestamp};
use batzen_store::memory::MemoryBackend;
use batzen_store::{List, Store};
use batzen_tables::merchant::{
    OrderRow, Orders, ProductKey, ProductLockKey, ProductLocks, ProductRow, Products, lock_ref, order_ref,
};
use proptest::prelude::*;

use crate::rows;

const SHOP: &str = "shop";
const KEPT_S: u64 = Orders::UNCLAIMED_KEPT.as_micros() / 1_000_000;
const GRACE_S: u64 = GRACE.as_micros() / 1_000_000;

#[derive(Clone, Debug)]
enum Step {
    Create { product: u8, total: Option<u64> },
    Change { product: u8, total: Option<u64>, lost: Option<u64> },
    Delete { product: u8 },
    Lock { product: u8, lock: u8, quantity: u64, seconds: u64 },
    Order { id: u8, stock: BTreeMap<u8, u64>, seconds: u64, lock: Option<u8> },
    Pay { id: u8 },
    DeleteOrder { id: u8, force: bool },
    Wait { seconds: u64 },
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    let total = || prop::option::weighted(0.9, 0..12_u64);
    let few = 0..3_u8;
    prop_oneof![
        2 => (few.clone(), total()).prop_map(|(product, total)| Step::Create { product, total }),
        1 => (few.clone(), total(), prop::option::of(0..6_u64))
            .prop_map(|(product, total, lost)| Step::Change { product, total, lost }),
        1 => few.clone().prop_map(|product| Step::Delete { product }),
        4 => (few.clone(), few.clone(), 0..5_u64, 0..90_u64)
            .prop_map(|(product, lock, quantity, seconds)| Step::Lock { product, lock, quantity, seconds }),
        4 => (0..5_u8, prop::collection::btree_map(few.clone(), 1..5_u64, 0..3), 0..90_u64, prop::option::of(few.clone()))
            .prop_map(|(id, stock, seconds, lock)| Step::Order { id, stock, seconds, lock }),
        3 => (0..5_u8).prop_map(|id| Step::Pay { id }),
        1 => (0..5_u8, any::<bool>()).prop_map(|(id, force)| Step::DeleteOrder { id, force }),
        2 => (0..60_u64).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Wait { seconds: KEPT_S }),
        2 => Just(Step::Release),
    ]
}

fn key(product: u8) -> ProductKey {
    ProductKey::new(SHOP, &product.to_string())
}

fn lock(number: u8) -> batzen_tables::merchant::LockRef {
    lock_ref(SHOP, &number.to_string())
}

fn order(id: u8) -> batzen_tables::merchant::OrderRef {
    order_ref(SHOP, &id.to_string())
}

fn product_row(total: Option<u64>) -> ProductRow {
    ProductRow {
        details: "{}".to_owned(),
        price: Money::ZERO,
        minimum_age: 0,
        total_stock: total,
        sold: 0,
        lost: 0,
        locked: 0,
    }
}

fn order_row(id: u8, stock: &BTreeMap<u8, u64>, until: Timestamp) -> OrderRow {
    let text = format!("{id} {stock:?}");
    OrderRow {
        h_request: batzen_crypto::hash::sha512(text.as_bytes()),
        pay_deadline: until,
        products: List(stock.keys().map(u8::to_string).collect()),
        quantities: List(stock.values().copied().collect()),
        ..rows::order_row(SHOP, id, id.into(), text)
    }
}

fn instance() -> CreateInstance {
    CreateInstance { id: SHOP.to_owned(), row: rows::instance_row(SHOP, 1), accounts: Vec::new() }
}

#[derive(Clone, Debug, Default)]
struct Product {
    total: Option<u64>,
    sold: u64,
    lost: u64,
}

#[derive(Clone, Debug)]
struct Order {
    stock: BTreeMap<u8, u64>,
    until: u64,
    is_claimed: bool,
    is_paid: bool,
    holds: bool,
}

#[derive(Clone, Debug, Default)]
struct Model {
    now: u64,
    products: BTreeMap<u8, Product>,
    /// Units and end, by lock and product.
    locks: BTreeMap<(u8, u8), (u64, u64)>,
    orders: BTreeMap<u8, Order>,
}

impl Model {
    fn locked(&self, product: u8) -> u64 {
        let locks = self.locks.iter().filter(|((_, of), _)| *of == product).map(|(_, (units, _))| units);
        let orders =
            self.orders.values().filter(|order| order.holds).filter_map(|order| order.stock.get(&product));
        locks.chain(orders).sum()
    }

    fn take(&self, product: u8, requested: u64) -> Result<(), Refusal> {
        let product_id = product.to_string();
        let known = self.products.get(&product).ok_or_else(|| Refusal::ProductUnknown(product_id.clone()))?;
        let available = match known.total {
            None => u64::MAX,
            Some(total) => total.saturating_sub(known.sold + known.lost + self.locked(product)),
        };
        if requested > available {
            Err(Refusal::OutOfStock { product_id, requested, available })
        } else {
            Ok(())
        }
    }

    fn decide(&mut self, step: &Step) -> Result<(), Refusal> {
        let before = self.clone();
        let verdict = self.apply(step);
        if verdict.is_err() {
            *self = before;
        }
        verdict
    }

    fn apply(&mut self, step: &Step) -> Result<(), Refusal> {
        match step {
            Step::Create { product, total } => match self.products.get(product) {
                Some(known) if known.total == *total => Ok(()),
                Some(_) => Err(Refusal::ProductExists),
                None => {
                    self.products.insert(*product, Product { total: *total, ..Product::default() });
                    Ok(())
                }
            },
            Step::Change { product, total, lost } => {
                let unknown = || Refusal::ProductUnknown(product.to_string());
                let known = self.products.get_mut(product).ok_or_else(unknown)?;
                let lost = lost.unwrap_or(known.lost);
                if lost < known.lost {
                    return Err(Refusal::LostReduced);
                }
                let number = |total: &Option<u64>| total.unwrap_or(u64::MAX);
                if number(total) < number(&known.total) {
                    return Err(Refusal::StockReduced);
                }
                if lost > known.lost && number(total) < known.sold + lost {
                    return Err(Refusal::LostExceedsStock);
                }
                (known.total, known.lost) = (*total, lost);
                Ok(())
            }
            Step::Delete { product } => {
                let unknown = || Refusal::ProductUnknown(product.to_string());
                self.products.get(product).ok_or_else(unknown)?;
                if self.locked(*product) > 0 {
                    return Err(Refusal::ProductLocked);
                }
                self.products.remove(product);
                Ok(())
            }
            Step::Lock { product, lock, quantity, seconds } => {
                let unknown = || Refusal::ProductUnknown(product.to_string());
                self.products.get(product).ok_or_else(unknown)?;
                self.locks.remove(&(*lock, *product));
                if *quantity > 0 {
                    self.take(*product, *quantity)?;
                    self.locks.insert((*lock, *product), (*quantity, self.now + seconds));
                }
                Ok(())
            }
            Step::Order { id, stock, seconds, lock } => {
                if let Some(known) = self.orders.get(id) {
                    return if known.stock == *stock { Ok(()) } else { Err(Refusal::OrderExists) };
                }
                if let Some(lock) = lock {
                    self.locks.retain(|(of, _), _| of != lock);
                }
                let mut order = Order {
                    stock: BTreeMap::new(),
                    until: self.now + seconds,
                    is_claimed: false,
                    is_paid: false,
                    holds: true,
                };
                for (product, quantity) in stock {
                    self.take(*product, *quantity)?;
                    order.stock.insert(*product, *quantity);
                }
                order.holds = !stock.is_empty();
                self.orders.insert(*id, order);
                Ok(())
            }
            Step::Pay { id } => {
                let known = self.orders.get_mut(id).ok_or(Refusal::OrderUnknown)?;
                if !known.is_paid {
                    (known.is_claimed, known.is_paid, known.holds) = (true, true, false);
                    for (product, quantity) in known.stock.clone() {
                        if let Some(product) = self.products.get_mut(&product) {
                            product.sold += quantity;
                        }
                    }
                }
                Ok(())
            }
            Step::DeleteOrder { id, force } => {
                let known = self.orders.get(id).ok_or(Refusal::OrderUnknown)?;
                if known.is_paid {
                    return Err(Refusal::PaidStays);
                }
                let may_end = *force && !known.is_claimed;
                if known.until > self.now && !may_end {
                    return Err(Refusal::AwaitingPayment);
                }
                self.orders.remove(id);
                Ok(())
            }
            Step::Wait { seconds } => {
                self.now += seconds;
                Ok(())
            }
            Step::Release => {
                self.locks.retain(|_, (_, until)| *until > self.now);
                let now = self.now;
                self.orders.retain(|_, order| order.holds || order.is_claimed || order.until + KEPT_S > now);
                for order in self.orders.values_mut() {
                    order.holds &= order.until + GRACE_S > now;
                }
                Ok(())
            }
        }
    }
}

/// The commands of a step; the last one decides.
fn commands(step: &Step, model: &Model) -> Vec<Command> {
    let after = |seconds: u64| Timestamp::from_secs(model.now + seconds);
    match step {
        Step::Create { product, total } => {
            vec![CreateProduct { key: key(*product), row: product_row(*total) }.into()]
        }
        Step::Change { product, total, lost } => {
            vec![ChangeProduct { key: key(*product), row: product_row(*total), lost: *lost }.into()]
        }
        Step::Delete { product } => vec![DeleteProduct { key: key(*product) }.into()],
        Step::Lock { product, lock: number, quantity, seconds } => {
            let (key, lock) = (key(*product), lock(*number));
            vec![LockProduct { key, lock, quantity: *quantity, until: after(*seconds) }.into()]
        }
        Step::Order { id, stock, seconds, lock: number } => {
            let held = model.locks.keys().filter(|(of, _)| Some(*of) == *number);
            let locks =
                held.map(|(of, product)| ProductLockKey { lock: lock(*of), product_id: product.to_string() });
            let row = order_row(*id, stock, after(*seconds));
            vec![CreateOrder { order: order(*id), row, locks: locks.collect() }.into()]
        }
        Step::Pay { id } => {
            let Some(known) = model.orders.get(id) else {
                return vec![settle(*id, &BTreeMap::new())];
            };
            let terms = order_row(*id, &known.stock, Timestamp::ZERO).terms;
            let claim = Claim {
                order: order(*id),
                offered: terms,
                nonce: "wallet".to_owned(),
                terms: "claimed".to_owned(),
                h_contract: HashCode::from_bytes([*id; 64]),
            };
            vec![claim.into(), settle(*id, &known.stock)]
        }
        Step::DeleteOrder { id, force } => {
            let stock = model.orders.get(id).map(|order| order.stock.clone()).unwrap_or_default();
            let products = stock.keys().map(u8::to_string).collect();
            vec![DeleteOrder { order: order(*id), instance: SHOP.to_owned(), products, force: *force }.into()]
        }
        Step::Wait { .. } => Vec::new(),
        Step::Release => {
            // Everything is named, whether its time is over or not.
            let locks = model.locks.keys().map(|(of, product)| Held {
                holder: ProductLockKey { lock: lock(*of), product_id: product.to_string() },
                products: vec![key(*product)],
            });
            let orders = model.orders.iter().map(|(id, known)| Held {
                holder: order(*id),
                products: known.stock.keys().map(|product| key(*product)).collect(),
            });
            vec![ReleaseStock { locks: locks.collect(), orders: orders.collect() }.into()]
        }
    }
}

fn settle(id: u8, stock: &BTreeMap<u8, u64>) -> Command {
    Settle {
        order: order(id),
        instance: SHOP.to_owned(),
        fulfillment_url: None,
        session: None,
        products: stock.keys().map(u8::to_string).collect(),
        hooks: Vec::new(),
    }
    .into()
}

fn compare(store: &Store, model: &Model) {
    let products = store.all::<Products>().unwrap();
    assert_eq!(products.len(), model.products.len());
    for (number, known) in &model.products {
        let row = &products.iter().find(|found| found.key == key(*number)).unwrap().row;
        let expected = (known.total, known.sold, known.lost, model.locked(*number));
        assert_eq!((row.total_stock, row.sold, row.lost, row.locked), expected, "product {number}");
    }
    assert_eq!(store.count::<ProductLocks>().unwrap(), model.locks.len() as u64);
    let orders = store.all::<Orders>().unwrap();
    assert_eq!(orders.len(), model.orders.len());
    for (id, known) in &model.orders {
        let row = &orders.iter().find(|found| found.key.order == order(*id)).unwrap().row;
        assert_eq!((row.paid.is_some(), row.holds_stock), (known.is_paid, known.holds), "order {id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn stock_agrees_with_the_model(
        batches in prop::collection::vec(prop::collection::vec(step(), 1..5), 1..24),
    ) {
        let store = Store::new(MemoryBackend::new());
        let batcher = Batcher::new(Arc::new(MerchantRules::default()), store.clone());
        let mut model = Model::default();
        batcher.run(&[instance().into()], &|| Timestamp::ZERO).unwrap();
        for batch in batches {
            let mut all = Vec::new();
            let mut expected = Vec::new();
            for step in &batch {
                // The time of a batch is one.
                if matches!(step, Step::Wait { .. }) && !all.is_empty() {
                    continue;
                }
                let commands = commands(step, &model);
                let verdict = model.decide(step);
                if let Some(last) = commands.len().checked_sub(1) {
                    expected.push((all.len() + last, verdict));
                }
                all.extend(commands);
            }
            let now = Timestamp::from_secs(model.now);
            let verdicts = batcher.run(&all, &move || now).unwrap();
            let verdicts: Vec<_> = verdicts.into_iter().map(|verdict| verdict.map(drop)).collect();
            for (n, verdict) in expected {
                prop_assert_eq!(&verdicts[n], &verdict, "{:?}", batch);
            }
            compare(&store, &model);
        }
    }
}
