//! Attacks on a merchant backend, beside purchases.

use std::net::SocketAddr;

use batzen_crypto::{EddsaPrivateKey, EddsaSignature, HashCode};
use batzen_protocol::Duration;
use batzen_protocol::api::merchant::{
    ClaimRequest, CreateOrderResponse, CreateTemplateRequest, PayCoin, PayRequest, TemplateContract,
    TemplateDetails,
};
use serde_json::json;

use super::arena::{Arena, HttpArena, Setting};
use super::attack::{Act, always, each, head};
use super::slow::SlowServer;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins::{self, Reserves};
use crate::bench::load::measure::Stage;
use crate::bench::load::random::Seed;
use crate::bench::load::wire;
use crate::bench::scenarios::pay::{Pay, shop_path, with_token};
use crate::bench::scenarios::world::{self, call};

/// Number of shops.
const SHOPS: u32 = 4;
/// The template that each of them has.
const TEMPLATE: &str = "coffee";
/// Exchanges that one payment names.
const EXCHANGES: u64 = 3;
/// Size of a slow payment.
const PAYMENT_BYTES: usize = 1 << 20;

pub(super) fn start(setting: &Setting<'_>) -> Result<Box<dyn Arena>> {
    let slow = SlowServer::start(&setting.cores())?;
    let mut world = setting.world(false, String::new())?;
    world.open_merchant(&setting.progress)?;
    let missing = || BenchError::SetUp("there is no merchant backend".into());
    let place = world.merchant_pid().zip(world.merchant_address()).ok_or_else(missing)?;
    let seed = Seed::new(setting.load.seed).part("hostile");
    let load =
        Pay::with_template(TEMPLATE, SHOPS, setting.cipher, setting.load.clone(), setting.run.clone())?;
    let price = load.amount();
    let template = CreateTemplateRequest {
        template_id: TEMPLATE.to_owned(),
        details: TemplateDetails {
            template_description: "Coffee".to_owned(),
            template_contract: TemplateContract {
                summary: Some("A coffee".to_owned()),
                amount: Some(price),
                minimum_age: 0,
                pay_duration: Duration::from_secs(3_600),
            },
        },
    };
    let port = slow.port;
    let acts = move |stage: &mut Stage<'_>| {
        for shop in 0..SHOPS as usize {
            let path = format!("{}/private/templates", shop_path(shop));
            call(place.1, "add a template", &with_token(wire::post(&path, &template)))?;
        }
        let pay = payment(&seed, stage, port)?;
        acts(place.1, pay)
    };
    Ok(Box::new(HttpArena::new(setting, world, load, place, Some(slow), acts)?))
}

/// Payments whose coins are of exchanges at the port of a server that does not answer.
fn payment(seed: &Seed, stage: &mut Stage<'_>, port: u16) -> Result<impl Fn(u64) -> PayRequest + use<>> {
    let reserves = Reserves::open(1, seed, stage.world, stage.progress)?;
    let coin = stage.coins("withdrawing a coin", &reserves, seed, 0, 1)?.remove(0);
    let seed = *seed;
    Ok(move |number| {
        let coin = |part: u64| PayCoin {
            coin_pub: EddsaPrivateKey::from_bytes(seed.bytes("coin", number * EXCHANGES + part)).public_key(),
            coin_sig: EddsaSignature::from_bytes([0; 64]),
            ub_sig: coin.signature.clone(),
            h_denom: HashCode::from_bytes(seed.bytes("denomination", number)),
            contribution: world::units(1),
            exchange_url: format!("http://127.0.0.1:{port}/{}/", number * EXCHANGES + part),
            minimum_age_sig: None,
            age_commitment: None,
            h_age_commitment: None,
        };
        PayRequest { coins: (0..EXCHANGES).map(coin).collect(), session_id: None }
    })
}

fn acts(
    merchant: SocketAddr,
    payment: impl Fn(u64) -> PayRequest + Send + Sync + 'static,
) -> Result<Vec<(&'static str, Act)>> {
    let shop = shop_path(0);
    let order = json!({ "order": {
        "amount": world::units(1), "summary": "Never paid", "fulfillment_url": "https://shop.example/${ORDER_ID}",
    } });
    let make = || {
        let request = with_token(wire::post(&format!("{shop}/private/orders"), &order));
        let answer = call(merchant, "create an order", &request)?;
        let CreateOrderResponse { order_id, token } = coins::read("order", &answer.body)?;
        Ok::<_, BenchError>((format!("{shop}/orders/{order_id}"), token))
    };
    let (claimed, token) = make()?;
    let nonce = EddsaPrivateKey::from_bytes([7; 32]).public_key().to_string();
    call(
        merchant,
        "claim an order",
        &wire::post(&format!("{claimed}/claim"), &ClaimRequest { nonce, token }),
    )?;
    let pay_path = format!("{claimed}/pay");
    let mut slow = head("POST", &pay_path, PAYMENT_BYTES);
    slow.resize(slow.len() + PAYMENT_BYTES - 4096, b' ');
    let (waiting, token) = make()?;
    let poll = format!("{waiting}?token={}&timeout_ms=120000", token.unwrap_or_default());
    let template =
        |number: u64| wire::post(&format!("{}/templates/{TEMPLATE}", shop_path(at(number))), &json!({}));
    let guess = |number: u64| {
        let request = wire::get(&format!("{}/private/orders", shop_path(at(number))));
        wire::with_header(request, "Authorization", &format!("Bearer secret-token:guess-{number:012}"))
    };
    Ok(vec![
        ("slow-exchanges", Act::Repeats(each(move |number| wire::post(&pay_path, &payment(number))))),
        ("template-orders", Act::Repeats(each(template))),
        ("token-guesses", Act::Repeats(each(guess))),
        ("unread-documents", Act::Ignores(vec![wire::get("/openapi.json").repeat(200).into()])),
        ("order-polls", Act::Repeats(always(wire::get(&poll)))),
        ("slow-payments", Act::Drips(vec![slow.into()], b" ")),
    ])
}

/// The shop whose turn it is.
fn at(number: u64) -> usize {
    (number % u64::from(SHOPS)) as usize
}
