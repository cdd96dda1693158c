//! Attacks on an auditor, beside merchants that show it confirmations.

use batzen_crypto::{EddsaSignature, HashCode};
use batzen_protocol::api::auditor::DepositConfirmationRequest;
use batzen_protocol::api::exchange::{DepositConfirmation, KeysResponse};

use super::arena::{Arena, HttpArena, Setting};
use super::attack::{Act, each, head};
use super::large_body;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::Placement;
use crate::bench::load::coins::{self, Mint, Reserves};
use crate::bench::load::generator::Kind;
use crate::bench::load::measure::{Description, Stage, Workload, too_many};
use crate::bench::load::payments::Payments;
use crate::bench::load::prepared::{Job, Prepared};
use crate::bench::load::random::{Merchants, Seed};
use crate::bench::load::wire;
use crate::bench::scenarios::ceiling::Cipher;
use crate::bench::scenarios::world::{BANK_HOST, send_all};

/// Size of a slow confirmation: just below the limit.
const SLOW_BYTES: usize = 16_000;
/// Where confirmations are shown.
const PATH: &str = "/deposit-confirmation";

pub(super) fn start(setting: &Setting<'_>) -> Result<Box<dyn Arena>> {
    // The auditor is under attack, so it has the server's cores and the exchange the others.
    let Placement { server, client, all, remark } = setting.run_dir.placement.clone();
    let swapped = Placement { server: client, client: server, all, remark };
    let world = setting.world_on(swapped, true, String::new())?;
    let missing = || BenchError::SetUp("there is no auditor".into());
    let place = world.auditor().map(|auditor| (auditor.pid(), auditor.address)).ok_or_else(missing)?;
    let seed = Seed::new(setting.load.seed).part("auditor");
    let load = Confirmations {
        payments: Payments::new(Merchants::Uniform, false, BANK_HOST, &seed),
        seed,
        cipher: setting.cipher.cipher(),
        reserves: None,
        prepared: 0,
    };
    Ok(Box::new(HttpArena::new(setting, world, load, place, None, |stage| acts(&seed, stage))?))
}

fn acts(seed: &Seed, stage: &mut Stage<'_>) -> Result<Vec<(&'static str, Act)>> {
    let (seed, model) = (*seed, junk(seed, &stage.world.keys()?)?);
    let mut slow = head("PUT", PATH, SLOW_BYTES);
    slow.resize(slow.len() + SLOW_BYTES / 2, b' ');
    let large = large_body("PUT", PATH);
    let junk = move |number: u64| {
        let wrong = EddsaSignature::from_bytes(seed.bytes("junk", number));
        let mut request = model.clone();
        // Half of them have a statement about the signing key that must be checked, too.
        *(if number.is_multiple_of(2) { &mut request.exchange_sig } else { &mut request.master_sig }) = wrong;
        wire::put(PATH, &request)
    };
    Ok(vec![
        ("junk-confirmations", Act::Repeats(each(junk))),
        ("slow-confirmations", Act::Drips(vec![slow.into()], b" ")),
        ("large-confirmations", Act::Leaves(Box::new(move |_| large.clone()))),
    ])
}

/// A confirmation that no exchange has signed, under the exchange's signing key.
fn junk(seed: &Seed, keys: &KeysResponse) -> Result<DepositConfirmationRequest> {
    let mut payments = Payments::new(Merchants::One, false, BANK_HOST, seed);
    let payment = payments.next_payment();
    let coin_pub = batzen_crypto::EddsaPrivateKey::from_bytes(seed.bytes("coin", 0)).public_key();
    let amount = crate::bench::scenarios::world::units(1);
    let time = crate::bench::scenarios::world::now();
    let confirmed = DepositConfirmation {
        transaction_base_url: None,
        exchange_timestamp: time,
        exchange_sig: EddsaSignature::from_bytes([0; 64]),
        exchange_pub: first_key(keys)?,
    };
    request(&payments.confirmation(&payment, coin_pub, amount, time), &confirmed, keys)
}

fn first_key(keys: &KeysResponse) -> Result<batzen_crypto::EddsaPublicKey> {
    let none = || BenchError::WrongAnswer("/keys has no signing key".into());
    Ok(keys.signkeys.first().ok_or_else(none)?.key)
}

/// The request with which a merchant shows a confirmation.
fn request(
    said: &batzen_protocol::signatures::ExchangeConfirmDeposit,
    confirmed: &DepositConfirmation,
    keys: &KeysResponse,
) -> Result<DepositConfirmationRequest> {
    let signkey = keys.signkeys.iter().find(|signkey| signkey.key == confirmed.exchange_pub);
    let signkey = signkey.ok_or_else(|| BenchError::WrongAnswer("an unknown signing key".into()))?;
    Ok(DepositConfirmationRequest {
        h_contract_terms: said.h_contract_terms,
        h_policy: HashCode::from_bytes([0; 64]),
        h_wire: said.h_wire,
        exchange_timestamp: confirmed.exchange_timestamp,
        refund_deadline: said.refund_deadline,
        wire_deadline: said.wire_deadline,
        amount_without_fee: said.amount_without_fee,
        coin_pub: said.coin_pub,
        merchant_pub: said.merchant_pub,
        exchange_sig: confirmed.exchange_sig,
        exchange_pub: confirmed.exchange_pub,
        master_pub: keys.master_public_key,
        ep_start: signkey.stamp_start,
        ep_expire: signkey.stamp_expire,
        ep_end: signkey.stamp_end,
        master_sig: signkey.master_sig,
    })
}

/// The load of confirmations that an exchange has made.
struct Confirmations {
    payments: Payments,
    seed: Seed,
    cipher: Cipher,
    reserves: Option<Reserves>,
    /// Confirmations prepared so far.
    prepared: u32,
}

impl Workload for Confirmations {
    type Script = Prepared;

    fn describe(&self) -> Description {
        Description::brief("auditor", "confirmations", Kind::counted("confirmation"), self.cipher)
    }

    fn set_up(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        self.reserves = Some(Reserves::open(1, &self.seed, stage.world, stage.progress)?);
        Ok(())
    }

    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Prepared>> {
        let (first, count) = (self.prepared, u32::try_from(ops).map_err(|_| too_many())?);
        self.prepared += count;
        let reserves = self.reserves.as_ref().expect("the set-up has made them");
        let bar = stage.progress.bar("paying merchants", ops);
        let mint = Mint { world: stage.world, prep_pool: stage.prep_pool, reserves, seed: &self.seed };
        let coins = mint.coins(first, count as usize, &bar)?;
        let (denom, mut payments, mut requests) = (&stage.world.denoms[0], Vec::new(), Vec::new());
        for coin in &coins {
            let payment = self.payments.next_payment();
            let signature = self.payments.sign(&payment, &coin.coin_priv, denom, denom.amount);
            let part = self.payments.part(coin, denom, denom.amount, signature);
            requests.push(self.payments.request(&payment, vec![part]));
            payments.push(payment);
        }
        let plan = stage.world.set_up_plan(stage.world.exchange_address);
        let answers = send_all(&plan, requests, "deposit a coin", &bar, stage.world.interrupted())?;
        let keys = stage.world.keys()?;
        let mut jobs = Vec::with_capacity(coins.len());
        for ((coin, payment), answer) in coins.iter().zip(&payments).zip(&answers) {
            let confirmed: DepositConfirmation = coins::read("deposit", answer)?;
            let time = confirmed.exchange_timestamp;
            let said = self.payments.confirmation(payment, coin.coin_pub, denom.amount, time);
            let bytes = wire::put(PATH, &request(&said, &confirmed, &keys)?);
            jobs.push(Job::single(u64::from(first) + jobs.len() as u64, 1, bytes));
        }
        // The auditor follows what was prepared before the load begins.
        stage.world.auditor_catches_up()?;
        Ok(Prepared::share(jobs, stage.threads, stage.clients))
    }
}
