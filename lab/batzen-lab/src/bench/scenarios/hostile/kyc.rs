//! Attacks on the identification of customers, beside people who come back from an identity provider.

use std::net::SocketAddr;

use batzen_crypto::EddsaPrivateKey;
use batzen_http::{Head, Method};
use batzen_protocol::api::exchange::{KycRedirect, KycWalletRequest};
use batzen_protocol::signatures::{SignedMessage, WalletAccountSetup};
use serde::Deserialize;
use serde_json::json;

use super::arena::{Arena, HttpArena, Setting};
use super::attack::{Act, always, each};
use super::slow::{GOOD_CODE, SlowServer};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins;
use crate::bench::load::generator::Kind;
use crate::bench::load::measure::{Description, Stage, Workload};
use crate::bench::load::prepared::{Job, Prepared};
use crate::bench::load::random::Seed;
use crate::bench::load::wire;
use crate::bench::scenarios::ceiling::Cipher;
use crate::bench::scenarios::world;

/// The balance of a wallet that must be identified.
const BALANCE: u64 = 100;

pub(super) fn start(setting: &Setting<'_>) -> Result<Box<dyn Arena>> {
    let provider = SlowServer::start(&setting.cores())?;
    let world = setting.world(false, sections(provider.port))?;
    let place = (world.exchange_pids()[0], world.exchange_address);
    let seed = Seed::new(setting.load.seed).part("kyc");
    let load = Identifications { seed, cipher: setting.cipher.cipher(), prepared: 0 };
    let acts = |stage: &mut Stage<'_>| acts(&seed.part("hostile"), stage.world.exchange_address);
    Ok(Box::new(HttpArena::new(setting, world, load, place, Some(provider), acts)?))
}

/// A limit for wallets, and the provider that identifies their owners.
fn sections(port: u16) -> String {
    let url = format!("http://127.0.0.1:{port}");
    format!(
        "
[kyc-legitimization-balance]
OPERATION_TYPE = balance
THRESHOLD = {currency}:{BALANCE}
REQUIRED_CHECKS = name

[kyc-provider-login]
LOGIC = oauth2
USER_TYPE = individual
PROVIDED_CHECKS = name
COST = 1
KYC_OAUTH2_VALIDITY = 2 years
KYC_OAUTH2_LOGIN_URL = {url}/login
KYC_OAUTH2_AUTH_URL = {url}/token
KYC_OAUTH2_INFO_URL = {url}/info
KYC_OAUTH2_POST_URL = {url}/thanks
KYC_OAUTH2_CLIENT_ID = exchange
KYC_OAUTH2_CLIENT_SECRET = secret
",
        currency = world::CURRENCY
    )
}

/// A wallet's question whether it may hold so much.
fn ask(seed: &Seed, number: u64) -> Vec<u8> {
    let key = EddsaPrivateKey::from_bytes(seed.bytes("wallet", number));
    let balance = world::units(BALANCE);
    let reserve_sig = WalletAccountSetup { threshold: balance }.sign(&key);
    wire::post("/kyc-wallet", &KycWalletRequest { balance, reserve_pub: key.public_key(), reserve_sig })
}

fn call(exchange: SocketAddr, what: &str, request: &[u8], status: u16) -> Result<wire::Answer> {
    let answer = wire::call(exchange, request).map_err(|error| BenchError::set_up(what, error))?;
    if answer.status == status {
        return Ok(answer);
    }
    let text = String::from_utf8_lossy(&answer.body);
    Err(BenchError::set_up(what, format!("HTTP {} instead of {status}: {text}", answer.status)))
}

/// The path at which an exchange says whether a wallet's owner is identified.
fn check_path(exchange: SocketAddr, seed: &Seed, number: u64) -> Result<String> {
    #[derive(Deserialize)]
    struct Required {
        requirement_row: u64,
        h_payto: String,
    }
    let answer = call(exchange, "ask to hold more", &ask(seed, number), 451)?;
    let Required { requirement_row, h_payto } = coins::read("kyc-wallet", &answer.body)?;
    Ok(format!("/kyc-check/{requirement_row}/{h_payto}/individual"))
}

/// The request with which a browser comes back from the provider with this code.
fn proof(exchange: SocketAddr, check_path: &str, code: &str) -> Result<Vec<u8>> {
    let answer = call(exchange, "begin an identification", &wire::get(check_path), 202)?;
    let KycRedirect { kyc_url } = coins::read("kyc-check", &answer.body)?;
    let (mut page, mut cookie) = (kyc_url, None);
    // Older exchanges send the browser to the provider at once.
    if let Some(at) = page.find("/kyc-login/") {
        let missing = || BenchError::WrongAnswer("a page that leads nowhere".into());
        let shown = call(exchange, "open the page", &wire::get(&page[at..]), 200)?;
        let html = String::from_utf8_lossy(&shown.body).replace("&amp;", "&");
        let (_, action) = html.split_once("action=\"").ok_or_else(missing)?;
        let (action, _) = action.split_once('"').ok_or_else(missing)?;
        let (path, _) = page[at..].split_once('?').ok_or_else(missing)?;
        let named = shown.header("set-cookie").and_then(|text| text.split(';').next()).ok_or_else(missing)?;
        let press = wire::with_header(wire::post(&format!("{path}{action}"), &json!({})), "Cookie", named);
        let sent = call(exchange, "go to the provider", &press, 200)?;
        cookie = Some(named.to_owned());
        page = sent.header("refresh").ok_or_else(missing)?.to_owned();
    }
    let head = Head::local(Method::GET, &format!("/?{}", page.split_once('?').unwrap_or_default().1));
    let back = head.query_text("redirect_uri").unwrap_or_default();
    let at =
        back.find("/kyc-proof/").ok_or_else(|| BenchError::WrongAnswer(format!("no way back: {page}")))?;
    let request = wire::get(&format!("{}&code={code}", &back[at..]));
    Ok(match cookie {
        Some(cookie) => wire::with_header(request, "Cookie", &cookie),
        None => request,
    })
}

fn acts(seed: &Seed, exchange: SocketAddr) -> Result<Vec<(&'static str, Act)>> {
    let (path, slow_path) =
        (check_path(exchange, seed, u64::MAX)?, check_path(exchange, seed, u64::MAX - 1)?);
    let (seed, check) = (*seed, wire::get(&path));
    let begin = move |number: u64| if number.is_multiple_of(2) { ask(&seed, number) } else { check.clone() };
    Ok(vec![
        ("slow-proofs", Act::Repeats(always(proof(exchange, &slow_path, "slow")?))),
        ("kyc-starts", Act::Repeats(each(begin))),
        ("kyc-polls", Act::Repeats(always(wire::get(&format!("{path}?timeout_ms=120000"))))),
    ])
}

/// The load of people who come back from the provider.
struct Identifications {
    seed: Seed,
    cipher: Cipher,
    /// People prepared so far.
    prepared: u64,
}

impl Workload for Identifications {
    type Script = Prepared;

    fn describe(&self) -> Description {
        Description::brief("kyc", "identifications", Kind::counted("proof"), self.cipher)
    }

    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Prepared>> {
        let exchange = stage.world.exchange_address;
        let first = self.prepared;
        self.prepared += ops;
        let bar = stage.progress.bar("beginning identifications", ops);
        let job = |number| {
            let path = check_path(exchange, &self.seed, number)?;
            bar.step();
            Ok(Job::single(number, 1, proof(exchange, &path, GOOD_CODE)?))
        };
        let jobs = (first..self.prepared).map(job).collect::<Result<_>>()?;
        let scripts = Prepared::share(jobs, stage.threads, stage.clients);
        Ok(scripts.into_iter().map(|script| script.expecting(303)).collect())
    }
}
