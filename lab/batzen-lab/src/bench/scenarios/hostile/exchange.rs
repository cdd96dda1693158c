//! Attacks on the exchange, beside payments.

use std::sync::Arc;

use batzen_crypto::denom::ExchangeWithdrawValues;
use batzen_crypto::{DenomKey, EddsaSignature};
use batzen_protocol::api::exchange::{ManagementKeysRequest, SignKeySignature};

use super::arena::{Arena, HttpArena, Setting};
use super::attack::{Act, Parts, Requests, always, head};
use super::large_body;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins::{self, Planchet, Reserves};
use crate::bench::load::measure::Stage;
use crate::bench::load::payments::Payments;
use crate::bench::load::random::{Merchants, Seed};
use crate::bench::load::wire;
use crate::bench::scenarios::deposit::{DepositArgs, DepositLoad};
use crate::bench::scenarios::world::{BANK_HOST, call};

/// Withdrawals that give a reserve its long history; they leave it empty.
const HISTORY: u32 = 6_000;
/// Copies of one valid signature in a request about keys: some 15 MB.
const COPIES: usize = 60_000;

pub(super) fn start(setting: &Setting<'_>, args: &DepositArgs) -> Result<Box<dyn Arena>> {
    let world = setting.world(false, String::new())?;
    let place = (world.exchange_pids()[0], world.exchange_address);
    let seed = Seed::new(setting.load.seed).part("hostile");
    let load = DepositLoad::single(args);
    Ok(Box::new(HttpArena::new(setting, world, load, place, None, |stage| acts(&seed, stage))?))
}

/// Prepares the attacks. A reserve is emptied first, so that it has a long history that proves refusals.
fn acts(seed: &Seed, stage: &mut Stage<'_>) -> Result<Vec<(&'static str, Act)>> {
    let reserves = Reserves::open_with(1, u64::from(HISTORY), seed, stage.world, stage.progress)?;
    let coins = stage.coins("making a long history", &reserves, seed, 0, HISTORY as usize)?;
    let denom = &stage.world.denoms[0];
    let values = match denom.key.key {
        DenomKey::Rsa(_) => ExchangeWithdrawValues::Rsa,
        DenomKey::Cs(_) => {
            let request = coins::csr_request(seed, HISTORY, denom);
            coins::csr_answer(&call(stage.world.exchange_address, "ask for R values", &request)?.body)?
        }
    };
    let one_more = Planchet::new(seed, HISTORY, denom, &values)?;
    let mut payments = Payments::new(Merchants::One, false, BANK_HOST, seed);
    let payment = payments.next_payment();
    let part = payments.part(&coins[0], denom, denom.amount, EddsaSignature::from_bytes([0; 64]));
    let deposit = payments.request(&payment, vec![part]);
    let keys = stage.world.keys()?;
    let signkey =
        keys.signkeys.first().ok_or_else(|| BenchError::WrongAnswer("/keys has no signing key".into()))?;
    let copy = SignKeySignature { exchange_pub: signkey.key, master_sig: signkey.master_sig };
    let copies = ManagementKeysRequest { denom_sigs: Vec::new(), signkey_sigs: vec![copy; COPIES] };
    let poll = wire::get(&format!("/reserves/{}?timeout_ms=120000", signkey.key));
    let refused = reserves.withdraw(0, &[(denom, &one_more)]);
    let large = large_body("POST", "/batch-deposit");
    // A fast start: all but the end.
    let mut slow = large.clone();
    let filler = slow.pop().unwrap_or_default();
    slow.push(filler[4096..].into());
    Ok(vec![
        ("slow-uploads", Act::Drips(slow, b"x")),
        (
            "slow-headers",
            Act::Drips(vec![b"GET /keys HTTP/1.1\r\nHost: localhost\r\n"[..].into()], b"X: y\r\n"),
        ),
        ("long-polls", Act::Repeats(always(poll))),
        ("unread-histories", Act::Ignores(vec![reserves.status(0).repeat(32).into()])),
        ("unread-keys", Act::Ignores(vec![wire::get("/keys").repeat(500).into()])),
        ("refused-histories", Act::Repeats(always(refused))),
        ("large-bodies", Act::Leaves(Box::new(move |_| large.clone()))),
        ("large-accounts", Act::Leaves(stretched(&deposit, "payto://x-taler-bank/localhost/")?)),
        ("copied-signatures", Act::Leaves(always(wire::post("/management/keys", &copies)))),
        (
            "junk-connections",
            Act::Leaves(always(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 junk\r\n\r\n".to_vec())),
        ),
    ])
}

/// A JSON request that is lengthened after the first `place` in its body, by its number and 15 MB.
fn stretched(request: &[u8], place: &str) -> Result<Requests> {
    let none = || BenchError::WrongAnswer(format!("a request without {place}"));
    let text = std::str::from_utf8(request).map_err(|_| none())?;
    let (start, body) = text.split_once("\r\n\r\n").ok_or_else(none)?;
    let path = start.split(' ').nth(1).ok_or_else(none)?.to_owned();
    let at = body.find(place).ok_or_else(none)? + place.len();
    let [before, after]: [Arc<[u8]>; 2] = [body.as_bytes()[..at].into(), body.as_bytes()[at..].into()];
    let filler = large_body("POST", &path).pop().unwrap_or_default();
    Ok(Box::new(move |number| -> Parts {
        let number = format!("{number}-").into_bytes();
        let length = before.len() + number.len() + filler.len() + after.len();
        let head = head("POST", &path, length);
        vec![head.into(), before.clone(), number.into(), filler.clone(), after.clone()]
    }))
}
