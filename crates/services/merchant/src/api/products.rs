//! Products and locks: `/private/products` (merchant chapter 6.7).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use batzen_http::{Request, Response};
use batzen_protocol::api::merchant::{
    ChangeProductRequest, CreateProductRequest, InventoryProduct, LockProductRequest, OutOfStock,
    ProductAnswer, ProductDetails, ProductList, ProductSummary,
};
use batzen_protocol::{Amount, ErrorCode, Money, Timestamp};
use batzen_store::{Found, Store};
use batzen_tables::merchant::{
    Orders, ProductKey, ProductLockKey, ProductLocks, ProductRow, Products, lock_ref,
};
use serde_json::{Map, Value, json};

use super::core::Core;
use super::table::{IMAGE_BYTES_MAX, Rows, SMALL_BODY_BYTES_MAX, endpoint};
use super::{Answer, Checked, Merchant, Shop, body, malformed, refused};
use crate::order_form::{INTEGER_LIMIT, is_plain};
use crate::rules::{
    ChangeProduct, CreateProduct, DeleteProduct, GRACE, Held, LockProduct, Refusal, ReleaseStock,
};
use crate::urls;

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("stock");
    rows.get("/private/products", endpoint!(Reader, list_products), "List products").gives::<ProductList>();
    rows.post("/private/products", endpoint!(Owner, create_product), "Add a product")
        .takes::<CreateProductRequest>(IMAGE_BYTES_MAX)
        .gives_nothing();
    rows.get("/private/products/:product", endpoint!(Reader, show_product), "A product and its stock")
        .gives::<ProductAnswer>();
    rows.patch("/private/products/:product", endpoint!(Owner, change_product), "Change a product")
        .takes::<ChangeProductRequest>(IMAGE_BYTES_MAX)
        .gives_nothing();
    rows.delete("/private/products/:product", endpoint!(Owner, delete_product), "Delete a product")
        .gives_nothing();
    rows.post("/private/products/:product/lock", endpoint!(Seller, lock_product), "Hold units for a cart")
        .takes::<LockProductRequest>(SMALL_BODY_BYTES_MAX)
        .gives_nothing()
        .answers::<OutOfStock>(410, "The stock does not suffice.");
    rows
}

/// The longest id of a product or a lock, in bytes.
const ID_BYTES_MAX: usize = 128;
/// The maximum number of products from the inventory in an order.
const ORDER_PRODUCTS_MAX: usize = 256;
/// The maximum number of locks that an order replaces.
const ORDER_LOCKS_MAX: usize = 64;
/// The maximum number of products in a list.
const LIST_MAX: usize = 65_536;
/// Units without a limit, in the API.
const UNLIMITED: i64 = -1;
/// Locks and orders that one command releases.
const RELEASES: usize = 128;

/// Returns whether a product, a lock or a template can have this id: it is part of URLs.
pub(super) fn is_id(id: &str) -> bool {
    urls::is_id(id, ID_BYTES_MAX)
}

fn total_of(stock: i64) -> Checked<Option<u64>> {
    match stock {
        UNLIMITED => Ok(None),
        stock => match u64::try_from(stock) {
            Ok(units) if units < INTEGER_LIMIT => Ok(Some(units)),
            _ => Err(malformed("total_stock")),
        },
    }
}

/// Units that a client names: 400, code 26 if programs could not read their number.
fn units(name: &str, units: u64) -> Checked<u64> {
    if units < INTEGER_LIMIT { Ok(units) } else { Err(malformed(name)) }
}

fn details_of(row: &ProductRow) -> Checked<ProductDetails> {
    let broken = |_| Response::error(ErrorCode::GENERIC_DB_INVARIANT_FAILURE, "product");
    serde_json::from_str(&row.details).map_err(broken)
}

/// The products that an order takes from the inventory.
#[derive(Default)]
pub(super) struct Taken {
    /// For the contract's `products`.
    pub(crate) products: Vec<Value>,
    /// The age that a customer must have.
    pub(crate) minimum_age: u8,
    /// Units of each product.
    pub(crate) quantities: BTreeMap<String, u64>,
    /// Locks that the order replaces.
    pub(crate) locks: Vec<ProductLockKey>,
}

async fn product(core: &Core, shop: &Shop, product_id: &str) -> Checked<ProductRow> {
    let key = ProductKey::new(&shop.id, product_id);
    let found = core.read(move |store| store.get::<Products>(&key)).await?;
    let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_PRODUCT_UNKNOWN, product_id);
    Ok(found.ok_or_else(unknown)?.row)
}

fn product_row(
    core: &Core,
    details: &ProductDetails,
    price: &Amount,
    total_stock: i64,
    minimum_age: Option<u8>,
) -> Checked<ProductRow> {
    for tax in details.taxes.iter().flatten() {
        core.money(&tax.tax, "taxes")?;
    }
    if details.description.is_empty() || !is_plain(&details.description) {
        return Err(malformed("description"));
    }
    Ok(ProductRow {
        details: serde_json::to_string(details).expect("details have a JSON form"),
        price: core.money(price, "price")?,
        minimum_age: minimum_age.unwrap_or(0),
        total_stock: total_of(total_stock)?,
        sold: 0,
        lost: 0,
        locked: 0,
    })
}

async fn list_products(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, _: &str) -> Answer {
    let id = shop.id.clone();
    let read = move |store: &Store| {
        let low = Bound::Included(Products::id_value(&id, None));
        // No product's id has such a byte.
        let high = Bound::Excluded(Products::id_value(&id, Some("\u{7f}")));
        store.range_bytes::<Products>(Products::BY_ID, low, high, LIST_MAX, false)
    };
    let found = app.core.read(read).await?;
    let summary = |found: Found<Products>| ProductSummary { product_id: found.key.product_id };
    Ok(Response::json(200, &ProductList { products: found.into_iter().map(summary).collect() }))
}

async fn create_product(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let wish: CreateProductRequest = body(request)?;
    shop.key()?;
    if !is_id(&wish.product_id) {
        return Err(malformed("product_id"));
    }
    let row = product_row(&app.core, &wish.details, &wish.price, wish.total_stock, wish.minimum_age)?;
    let key = ProductKey::new(&shop.id, &wish.product_id);
    app.core.decide(CreateProduct { key, row }, &wish.product_id).await?;
    Ok(Response::empty(204))
}

async fn show_product(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, product_id: &str) -> Answer {
    let row = product(&app.core, shop, product_id).await?;
    let answer = ProductAnswer {
        details: details_of(&row)?,
        price: app.core.amount(row.price),
        total_stock: row.total_stock.map_or(UNLIMITED, |units| i64::try_from(units).unwrap_or(i64::MAX)),
        total_sold: row.sold,
        total_lost: row.lost,
        total_locked: row.locked,
        minimum_age: (row.minimum_age > 0).then_some(row.minimum_age),
    };
    Ok(Response::json(200, &answer))
}

async fn change_product(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, product_id: &str) -> Answer {
    let wish: ChangeProductRequest = body(request)?;
    let row = product_row(&app.core, &wish.details, &wish.price, wish.total_stock, wish.minimum_age)?;
    let key = ProductKey::new(&shop.id, product_id);
    wish.total_lost.map(|lost| units("total_lost", lost)).transpose()?;
    app.core.decide(ChangeProduct { key, row, lost: wish.total_lost }, product_id).await?;
    Ok(Response::empty(204))
}

async fn delete_product(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, product_id: &str) -> Answer {
    let key = ProductKey::new(&shop.id, product_id);
    let mut verdict = app.core.execute(DeleteProduct { key: key.clone() }).await?;
    if verdict == Err(Refusal::ProductLocked) {
        release_stock(&app.core).await?;
        verdict = app.core.execute(DeleteProduct { key }).await?;
    }
    verdict.map_err(|refusal| refused(&refusal, product_id))?;
    Ok(Response::empty(204))
}

async fn lock_product(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, product_id: &str) -> Answer {
    let LockProductRequest { lock_uuid, duration, quantity } = body(request)?;
    if lock_uuid.is_empty() || lock_uuid.len() > ID_BYTES_MAX {
        return Err(malformed("lock_uuid"));
    }
    units("quantity", quantity)?;
    let until = match duration.is_forever() {
        true => Timestamp::NEVER,
        false => app.core.now().saturating_add(duration),
    };
    let lock = lock_ref(&shop.id, &lock_uuid);
    let wish = LockProduct { key: ProductKey::new(&shop.id, product_id), lock, quantity, until };
    let mut verdict = app.core.execute(wish.clone()).await?;
    if matches!(verdict, Err(Refusal::OutOfStock { .. })) {
        release_stock(&app.core).await?;
        verdict = app.core.execute(wish).await?;
    }
    match verdict {
        Ok(()) => Ok(Response::empty(204)),
        Err(refusal) => Err(out_of_stock(&app.core, shop, refusal, product_id).await),
    }
}

/// The answer to a refusal: 410 with what there is, if there is not enough.
pub(super) async fn out_of_stock(core: &Core, shop: &Shop, refusal: Refusal, detail: &str) -> Response {
    let Refusal::OutOfStock { product_id, requested, available } = &refusal else {
        return refused(&refusal, detail);
    };
    let row = product(core, shop, product_id).await.ok();
    let next = row.and_then(|row| details_of(&row).ok()).and_then(|details| details.next_restock);
    let answer = OutOfStock {
        product_id: product_id.clone(),
        requested_quantity: *requested,
        available_quantity: *available,
        restock_expected: next.filter(|next| *next != Timestamp::ZERO && !next.is_never()),
    };
    let Ok(Value::Object(extra)) = serde_json::to_value(&answer) else {
        unreachable!("it is a struct");
    };
    Response::error_with(refusal.code(), None, product_id, extra)
}

/// Takes an order's products from the inventory: 404, code 2006 if there is no such product.
pub(super) async fn taken(
    core: &Core,
    shop: &Shop,
    wanted: &[InventoryProduct],
    lock_uuids: &[String],
) -> Checked<Taken> {
    if wanted.len() > ORDER_PRODUCTS_MAX {
        return Err(malformed("inventory_products"));
    }
    if lock_uuids.len() > ORDER_LOCKS_MAX {
        return Err(malformed("lock_uuids"));
    }
    let mut taken = Taken::default();
    for InventoryProduct { product_id, quantity } in wanted {
        if *quantity == 0 {
            return Err(malformed("quantity"));
        }
        let row = product(core, shop, product_id).await?;
        let all = taken.quantities.entry(product_id.clone()).or_default();
        *all = units("quantity", all.saturating_add(*quantity))?;
        taken.minimum_age = taken.minimum_age.max(row.minimum_age);
        taken.products.push(contract_product(core, product_id, *quantity, &row)?);
    }
    let locks: Vec<_> = lock_uuids.iter().map(|uuid| lock_ref(&shop.id, uuid)).collect();
    let read = move |store: &Store| {
        let groups = locks.iter().map(|lock| store.lookup::<ProductLocks>(ProductLocks::BY_LOCK, lock));
        groups.collect::<Result<Vec<_>, _>>()
    };
    taken.locks = core.read(read).await?.into_iter().flatten().map(|found| found.key).collect();
    Ok(taken)
}

/// A product as contracts name it, with price and taxes of all units.
fn contract_product(core: &Core, product_id: &str, quantity: u64, row: &ProductRow) -> Checked<Value> {
    let times = |money: Money| {
        let all = money.checked_mul(quantity);
        let all =
            all.map_err(|_| Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_AMOUNT_OVERFLOW, ""))?;
        Ok::<Amount, Response>(core.amount(all))
    };
    let details = details_of(row)?;
    let mut product = Map::from_iter([
        ("product_id".to_owned(), json!(product_id)),
        ("description".to_owned(), json!(details.description)),
        ("quantity".to_owned(), json!(quantity)),
        ("unit".to_owned(), json!(details.unit)),
        ("price".to_owned(), json!(times(row.price)?)),
    ]);
    if let Some(texts) = details.description_i18n {
        product.insert("description_i18n".to_owned(), Value::Object(texts));
    }
    if let Some(image) = details.image {
        product.insert("image".to_owned(), json!(image));
    }
    if let Some(taxes) = details.taxes {
        let mut all = Vec::with_capacity(taxes.len());
        for tax in taxes {
            all.push(json!({ "name": tax.name, "tax": times(tax.tax.money)? }));
        }
        product.insert("taxes".to_owned(), json!(all));
    }
    if row.minimum_age > 0 {
        product.insert("minimum_age".to_owned(), json!(row.minimum_age));
    }
    Ok(Value::Object(product))
}

/// Releases the stock of locks and orders whose time is over. Returns whether there may be more.
pub(super) async fn release_stock(core: &Core) -> Checked<bool> {
    let now = core.now();
    let read = move |store: &Store| {
        let until = |time: Timestamp| Bound::Included(batzen_store::Column::to_bytes(&time));
        let of_locks = until(now);
        let of_orders = until(Timestamp::from_micros(now.as_micros().saturating_sub(GRACE.as_micros())));
        let locks = store.range_bytes::<ProductLocks>(
            ProductLocks::BY_END,
            Bound::Unbounded,
            of_locks,
            RELEASES,
            false,
        )?;
        let orders =
            store.range_bytes::<Orders>(Orders::BY_END, Bound::Unbounded, of_orders, RELEASES, false)?;
        Ok((locks, orders))
    };
    let (locks, orders) = core.read(read).await?;
    if locks.is_empty() && orders.is_empty() {
        return Ok(false);
    }
    let is_full = locks.len() == RELEASES || orders.len() == RELEASES;
    let release = ReleaseStock {
        locks: locks
            .into_iter()
            .map(|found| Held {
                products: vec![ProductKey::new(&found.row.instance, &found.key.product_id)],
                holder: found.key,
            })
            .collect(),
        orders: orders
            .into_iter()
            .map(|found| {
                let key = |(product_id, _): (&str, u64)| ProductKey::new(&found.row.instance, product_id);
                Held { holder: found.key.order, products: found.row.stock().map(key).collect() }
            })
            .collect(),
    };
    core.decide(release, "").await?;
    Ok(is_full)
}
