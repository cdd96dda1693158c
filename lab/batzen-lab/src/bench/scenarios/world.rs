//! The world of a measurement: a bank, an exchange and, if the scenario needs it, a merchant backend, all real
//! processes of this program, with keys, accounts and funded reserves.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use batzen_crypto::{DenomPublicKey, EddsaPublicKey, HashCode};
use batzen_protocol::api::bank::{AddIncomingRequest, RegisterRequest};
use batzen_protocol::api::exchange::{Denomination, KeysResponse, ReserveBalance};
use batzen_protocol::{Amount, Currency, Money, Timestamp};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::Placement;
use crate::bench::load::generator::{self, Next, Outgoing, Plan, Schedule, Script};
use crate::bench::load::progress::Progress;
use crate::bench::load::wire;
use crate::bench::scenarios::auditor::{Auditor, AuditorState, StreamKeys};
use crate::bench::scenarios::ceiling::Cipher;
use crate::bench::scenarios::database::Database;
use crate::bench::scenarios::merchant;
use crate::bench::scenarios::service::{self, PAUSE, Service};
use crate::bench::scenarios::target::Target;

/// The exchange's account at the bank.
const ACCOUNT: &str = "exchange";
/// Its payto URI.
pub(super) const PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";
pub(super) const CURRENCY: &str = "KUDOS";
/// The name of the bank in payto URIs, unless it runs already.
pub(super) const BANK_HOST: &str = "localhost";
/// Time that a service may take to start. Generating large RSA keys takes time.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);
/// Connections for the set-up.
const SET_UP_CLIENTS: usize = 16;

/// A denomination that the world needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoinKind {
    /// Value of a coin in whole units.
    pub(crate) value: u64,
    /// The cipher of its signature.
    pub(crate) cipher: Cipher,
}

/// A denomination of the exchange under test. It charges no fees.
#[derive(Clone, Debug)]
pub(crate) struct Denom {
    /// The value of a coin.
    pub amount: Amount,
    pub key: DenomPublicKey,
    /// The hash of the key.
    pub h_denom_pub: HashCode,
}

/// Options of a world.
#[derive(Clone)]
pub(crate) struct WorldPlan {
    /// The program whose services are started.
    pub(crate) program: PathBuf,
    /// An empty directory for everything.
    pub(crate) dir: PathBuf,
    /// The cores on which server and load generator run.
    pub(crate) placement: Placement,
    /// The denominations.
    pub(crate) coins: Vec<CoinKind>,
    /// Whether the exchange's workers run all the time.
    pub(crate) with_workers: bool,
    /// Whether an auditor follows the exchange.
    pub(crate) with_auditor: bool,
    /// The database for the exchange's rows; `None`: the embedded store.
    pub(crate) database: Option<Arc<Database>>,
    /// Processes of the exchange.
    pub(crate) nodes: u32,
    /// Further sections of the exchange's configuration.
    pub(crate) more_sections: String,
    /// Whether the directory is kept.
    pub(crate) is_kept: bool,
    /// Becomes true when the user interrupts the run.
    pub(crate) interrupted: Arc<AtomicBool>,
}

/// A running bank and exchange. They end when this is dropped.
pub(crate) struct World {
    plan: WorldPlan,
    config: PathBuf,
    /// None if bank and exchange run already; then nothing is started or looked into.
    bank: Option<Service>,
    /// The first runs the workers, if any.
    exchanges: Vec<Service>,
    merchant: Option<Service>,
    /// Where the merchant backend listens, also if it ran already.
    merchant_address: Option<SocketAddr>,
    auditor: Option<Auditor>,
    bank_address: SocketAddr,
    /// The path of the wire gateway of the exchange's account, with a slash at the end.
    gateway_path: String,
    /// The name of the bank in payto URIs.
    bank_host: String,
    base_url: String,
    /// The address of the exchange's first process.
    pub(crate) exchange_address: SocketAddr,
    /// The addresses of all its processes.
    pub(crate) exchange_addresses: Vec<SocketAddr>,
    /// The denominations, in the order of the plan.
    pub denoms: Vec<Denom>,
    /// Keys with which the exchange signs its confirmations.
    pub(crate) signing_keys: Vec<EddsaPublicKey>,
    /// Declared last, so that it is dropped last.
    _place: TemporaryDirs,
}

/// The currency of the world.
pub(crate) fn currency() -> Currency {
    CURRENCY.parse().expect("a constant currency")
}

/// An amount of this many whole units of the currency.
pub(crate) fn units(value: u64) -> Amount {
    Money::new(value, 0).unwrap_or(Money::MAX).of(currency())
}

/// The clock of the machine.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_system_time(std::time::SystemTime::now())
}

impl World {
    /// Starts bank and exchange, and waits until the exchange is usable.
    pub(crate) fn start(plan: WorldPlan, progress: &Progress) -> Result<Self> {
        let bank_port = free_port()?;
        let ports: Vec<u16> = (0..plan.nodes.max(1)).map(|_| free_port()).collect::<Result<_, _>>()?;
        if ports.len() > 1 && plan.database.is_none() {
            return Err(BenchError::Usage("several processes of the exchange need a database".into()));
        }
        std::fs::create_dir_all(&plan.dir).map_err(BenchError::io(&plan.dir))?;
        let dir = plan.dir.canonicalize().map_err(BenchError::io(&plan.dir))?;
        let plan = WorldPlan { dir, ..plan };
        let mut temporary_dirs =
            TemporaryDirs { dirs: ports.iter().map(|port| service::runtime_dir(*port)).collect() };
        if !plan.is_kept {
            temporary_dirs.dirs.push(plan.dir.clone());
        }
        if plan.with_auditor && plan.database.is_some() {
            return Err(BenchError::Usage("--with-auditor needs the embedded store".into()));
        }
        let stream_keys = plan.with_auditor.then(|| StreamKeys::make(&plan)).transpose()?;
        let mut configs = Vec::with_capacity(ports.len());
        for (node, port) in ports.iter().enumerate() {
            let config =
                plan.dir.join(if node == 0 { "taler.conf".into() } else { format!("taler-{node}.conf") });
            let mut text = configuration(&plan, bank_port, *port, ports[0]);
            let run = service::runtime_dir(*port);
            text.extend(stream_keys.as_ref().map(|keys| keys.exchange_section(&plan, &run)));
            std::fs::write(&config, text).map_err(BenchError::io(&config))?;
            configs.push(config);
        }
        let (bank_address, exchange_address) = (local(bank_port), local(ports[0]));
        let config = configs[0].clone();
        let conf = config.to_string_lossy().into_owned();

        let spinner = progress.waiting("starting the bank");
        let client_cores = &plan.placement.client;
        let mut bank = Service::start(&plan, "bank", &["bank", "serve", "-c", &conf], client_cores)?;
        bank.wait_until_ready(bank_address, "/taler-bank-integration/config", PATIENCE, &plan.interrupted)?;
        let account = RegisterRequest { username: ACCOUNT.to_owned(), password: ACCOUNT.to_owned() };
        call(
            bank_address,
            "open the exchange's account",
            &wire::post("/taler-bank-access/testing/register", &account),
        )?;
        drop(spinner);

        let total = plan.coins.len();
        let spinner = progress.waiting(&format!("creating keys of {total} denominations"));
        if let Some(database) = &plan.database {
            database.make_tables()?;
        }
        let mut exchanges = Vec::with_capacity(ports.len());
        for (node, (config, port)) in configs.iter().zip(&ports).enumerate() {
            let conf = config.to_string_lossy();
            let mut arguments = vec!["exchange", "serve", "-c", &conf];
            if !plan.with_workers || node > 0 {
                arguments.push("--no-workers");
            }
            let name = if node == 0 { "exchange".to_owned() } else { format!("exchange-{node}") };
            let mut exchange = Service::start(&plan, &name, &arguments, &plan.placement.server)?;
            exchange.wait_until_ready(local(*port), "/keys", PATIENCE, &plan.interrupted)?;
            exchange.wait_until_ready(local(*port), "/wire", PATIENCE, &plan.interrupted)?;
            exchanges.push(exchange);
        }
        let mut world = Self {
            config,
            bank: Some(bank),
            exchanges,
            merchant: None,
            merchant_address: None,
            auditor: None,
            bank_address,
            gateway_path: format!("/taler-wire-gateway/{ACCOUNT}/"),
            bank_host: BANK_HOST.to_owned(),
            base_url: format!("http://localhost:{}/", exchange_address.port()),
            exchange_address,
            exchange_addresses: ports.iter().map(|port| local(*port)).collect(),
            denoms: Vec::new(),
            signing_keys: Vec::new(),
            plan,
            _place: temporary_dirs,
        };
        world.read_keys()?;
        if let Some(keys) = stream_keys {
            let (url, master_pub) = (world.base_url(), world.keys()?.master_public_key);
            let run = service::runtime_dir(ports[0]);
            world.auditor = Some(Auditor::start(&world.plan, keys, &run, (&url, &master_pub))?);
        }
        drop(spinner);
        Ok(world)
    }

    /// The world around a bank and an exchange that run already.
    pub(crate) fn around(plan: WorldPlan, target: Target<'_>) -> Result<Self> {
        let Target { exchange, gateway } = target;
        let mut world = Self {
            config: PathBuf::new(),
            bank: None,
            exchanges: Vec::new(),
            merchant: None,
            merchant_address: None,
            auditor: None,
            bank_address: gateway.address,
            gateway_path: gateway.path.clone(),
            bank_host: gateway.host.clone(),
            base_url: exchange.url.clone(),
            exchange_address: exchange.address,
            exchange_addresses: vec![exchange.address],
            denoms: Vec::new(),
            signing_keys: Vec::new(),
            plan,
            _place: TemporaryDirs { dirs: Vec::new() },
        };
        let keys = world.keys()?;
        let refuse = |what: String| Err(BenchError::Usage(format!("{}: {what}", exchange.url)));
        if keys.currency != CURRENCY {
            return refuse(format!("its currency is {}; expected {CURRENCY}", keys.currency));
        }
        if !world.take_keys(&keys) {
            let coins = world.plan.coins.iter();
            let coins: Vec<_> =
                coins.map(|kind| format!("{} with {}", units(kind.value), kind.cipher)).collect();
            return refuse(format!("it does not offer all coins that are needed: {}", coins.join(", ")));
        }
        let is_used = |hash: HashCode| world.denoms.iter().any(|denom| denom.h_denom_pub == hash);
        let has_fees = |denom: &Denomination| {
            let fees = [denom.fee_withdraw, denom.fee_deposit, denom.fee_refresh];
            fees.iter().any(|fee| !fee.is_zero())
        };
        if keys.denoms.iter().any(|denom| is_used(denom.denom_pub.h_denom_pub()) && has_fees(denom)) {
            return refuse("its coins cost fees, which prepared requests do not pay".to_owned());
        }
        world.base_url = keys.base_url;
        Ok(world)
    }

    /// The addresses of the processes whose metrics are known to be those of all: none, if they run elsewhere.
    pub(crate) fn metrics_addresses(&self) -> Vec<SocketAddr> {
        if self.bank.is_some() { self.exchange_addresses.clone() } else { Vec::new() }
    }

    /// The exchange's processes.
    pub(crate) fn exchange_pids(&self) -> Vec<u32> {
        self.exchanges.iter().map(Service::pid).collect()
    }

    /// Starts a merchant backend that accepts the coins of this exchange.
    pub(crate) fn open_merchant(&mut self, progress: &Progress) -> Result<()> {
        let spinner = progress.waiting("starting the merchant backend");
        let master_pub = self.keys()?.master_public_key;
        let (merchant, address) = merchant::start(&self.plan, &self.base_url(), &master_pub)?;
        self.use_merchant(address);
        self.merchant = Some(merchant);
        drop(spinner);
        Ok(())
    }

    /// Sends the load to a merchant backend that runs already.
    pub(crate) fn use_merchant(&mut self, address: SocketAddr) {
        self.merchant_address = Some(address);
    }

    /// The process of the merchant backend, if there is one.
    pub(crate) fn merchant_pid(&self) -> Option<u32> {
        self.merchant.as_ref().map(Service::pid)
    }

    /// The address of the merchant backend, if there is one.
    pub(crate) const fn merchant_address(&self) -> Option<SocketAddr> {
        self.merchant_address
    }

    /// The auditor, if there is one.
    pub(crate) fn auditor(&self) -> Option<&Auditor> {
        self.auditor.as_ref()
    }

    /// Returns the progress of the auditor, if there is one.
    pub(crate) fn auditor_state(&self) -> Result<Option<AuditorState>> {
        self.auditor.as_ref().map(Auditor::state).transpose()
    }

    /// Waits until the auditor has checked everything, if there is one. Returns how many findings are open, and how
    /// long it took in seconds.
    pub(crate) fn auditor_catches_up(&mut self) -> Result<Option<(u64, f64)>> {
        self.auditor.as_mut().map(Auditor::catch_up).transpose()
    }

    /// The addresses that receive the load: the merchant backend's, or those of the exchange.
    pub(crate) fn loaded_addresses(&self) -> Vec<SocketAddr> {
        self.merchant_address.map_or_else(|| self.exchange_addresses.clone(), |address| vec![address])
    }

    /// The exchange's public URL, which signatures of wallets contain.
    pub(crate) fn base_url(&self) -> String {
        self.base_url.clone()
    }

    /// The database of the exchange, if it has one.
    pub(crate) fn database(&self) -> Option<&Arc<Database>> {
        self.plan.database.as_ref()
    }

    /// The answer of the exchange at `/keys`.
    pub(crate) fn keys(&self) -> Result<KeysResponse> {
        let answer = call(self.exchange_address, "read /keys", &wire::get("/keys"))?;
        serde_json::from_slice(&answer.body)
            .map_err(|error| BenchError::WrongAnswer(format!("/keys: {error}")))
    }

    fn read_keys(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let keys = self.keys()?;
            if self.take_keys(&keys) {
                return Ok(());
            }
            self.still_runs()?;
            if Instant::now() > deadline {
                return Err(BenchError::SetUp("the exchange does not offer all denominations".into()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes the denominations of the plan. Returns false if the exchange does not offer all of them.
    fn take_keys(&mut self, keys: &KeysResponse) -> bool {
        let found: Option<Vec<Denom>> = self.plan.coins.iter().map(|kind| find(keys, *kind)).collect();
        let is_complete = found.is_some();
        self.denoms = found.unwrap_or_default();
        self.signing_keys = keys.signkeys.iter().map(|signkey| signkey.key).collect();
        is_complete
    }

    /// Pays `amount` into every reserve, through the bank and the exchange's wirewatch.
    pub(crate) fn fund(
        &mut self,
        reserves: &[EddsaPublicKey],
        amount: Amount,
        progress: &Progress,
    ) -> Result<()> {
        let bar = progress.bar(&format!("funding {} reserves", reserves.len()), reserves.len() as u64);
        let requests = reserves
            .iter()
            .enumerate()
            .map(|(index, reserve_pub)| {
                let body = AddIncomingRequest {
                    reserve_pub: *reserve_pub,
                    amount,
                    debit_account: format!(
                        "payto://x-taler-bank/{}/payer-{}?receiver-name=payer",
                        self.bank_host,
                        index % 100
                    ),
                };
                wire::post(&format!("{}admin/add-incoming", self.gateway_path), &body)
            })
            .collect();
        let plan = self.set_up_plan(self.bank_address);
        send_all(&plan, requests, "pay into a reserve", &bar, &self.plan.interrupted)?;
        drop(bar);
        let spinner = progress.waiting("waiting for the exchange to see the money");
        if self.bank.is_some() && !self.plan.with_workers {
            self.run_worker("wirewatch")?;
        }
        // Credits are imported in the bank's order, so once the last has arrived, all have.
        let deadline = Instant::now() + PATIENCE;
        for reserve in reserves.iter().rev().take(1).chain(reserves) {
            while self.balance(reserve)? != Some(amount) {
                self.still_runs()?;
                if Instant::now() > deadline {
                    return Err(BenchError::SetUp(format!(
                        "the exchange does not see the money of reserve {reserve}"
                    )));
                }
                std::thread::sleep(PAUSE);
            }
        }
        drop(spinner);
        Ok(())
    }

    fn balance(&self, reserve: &EddsaPublicKey) -> Result<Option<Amount>> {
        let answer = wire::call(self.exchange_address, &wire::get(&format!("/reserves/{reserve}")))
            .map_err(|error| BenchError::set_up("read a reserve", error))?;
        if answer.status != 200 {
            return Ok(None);
        }
        let found: ReserveBalance = serde_json::from_slice(&answer.body)
            .map_err(|error| BenchError::WrongAnswer(format!("/reserves: {error}")))?;
        Ok(Some(found.balance))
    }

    /// Runs a worker of the exchange until it has nothing left to do.
    pub(crate) fn run_worker(&self, worker: &str) -> Result<()> {
        let conf = self.config.to_string_lossy().into_owned();
        service::run(&self.plan, &format!("the {worker}"), &["exchange", worker, "-c", &conf, "--test"])
            .map(|_| ())
    }

    /// A plan for load that belongs to the set-up; it runs until nothing is left to do.
    pub(crate) fn set_up_plan(&self, server: SocketAddr) -> Plan {
        Plan {
            servers: vec![server],
            clients: SET_UP_CLIENTS,
            schedule: Schedule::Closed,
            warmup: Duration::ZERO,
            duration: None,
            kinds: vec![generator::Kind::counted("set-up")],
            cores: self.plan.placement.client.clone(),
        }
    }

    /// Becomes true when the user interrupts the run.
    pub(crate) fn interrupted(&self) -> &Arc<AtomicBool> {
        &self.plan.interrupted
    }

    /// Fails if a service has exited or the user interrupts the run.
    ///
    /// # Errors
    /// [`BenchError::Ended`] with the end of its output, [`BenchError::Interrupted`].
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        if self.plan.interrupted.load(Relaxed) {
            return Err(BenchError::Interrupted);
        }
        self.bank.as_mut().map_or(Ok(()), Service::still_runs)?;
        self.merchant.as_mut().map_or(Ok(()), Service::still_runs)?;
        self.auditor.as_mut().map_or(Ok(()), |auditor| auditor.service.still_runs())?;
        self.exchanges.iter_mut().try_for_each(Service::still_runs)
    }

    /// Ends the services and has the exchange draw up its balance sheet. Returns whether the books balance; none if it
    /// goes on.
    pub(crate) fn finish(mut self, progress: &Progress) -> Result<Option<bool>> {
        self.still_runs()?;
        let Some(mut bank) = self.bank.take() else { return Ok(None) };
        let spinner = progress.waiting("ending the services and drawing up the balance sheet");
        self.merchant.as_mut().map_or(Ok(()), Service::terminate)?;
        self.auditor.as_mut().map_or(Ok(()), |auditor| auditor.service.terminate())?;
        self.exchanges.iter_mut().rev().try_for_each(Service::terminate)?;
        bank.terminate()?;
        let conf = self.config.to_string_lossy().into_owned();
        let balanced = service::run(&self.plan, "the balance sheet", &["exchange", "totals", "-c", &conf]);
        drop(spinner);
        match balanced {
            Ok(_) => Ok(Some(true)),
            Err(BenchError::Interrupted) => Err(BenchError::Interrupted),
            Err(error) => {
                eprintln!("{error}");
                Ok(Some(false))
            }
        }
    }
}

/// The directories of a world. Dropping this removes them, after the services have ended.
struct TemporaryDirs {
    dirs: Vec<PathBuf>,
}

impl Drop for TemporaryDirs {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // A directory that cannot be removed is no reason to withhold the result.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// The denomination of this kind in which coins are issued now.
fn find(keys: &KeysResponse, kind: CoinKind) -> Option<Denom> {
    let now = now();
    keys.denoms
        .iter()
        .find(|denom| {
            let is_kind = match (&denom.denom_pub.key, kind.cipher) {
                (batzen_crypto::DenomKey::Rsa(key), Cipher::Rsa(bits)) => key.bits() == bits,
                (batzen_crypto::DenomKey::Cs(_), Cipher::Cs) => true,
                _ => false,
            };
            is_kind
                && denom.value == units(kind.value)
                && denom.stamp_start <= now
                && now < denom.stamp_expire_withdraw
        })
        .map(|denom| Denom {
            amount: denom.value,
            h_denom_pub: denom.denom_pub.h_denom_pub(),
            key: denom.denom_pub.clone(),
        })
}

/// Sends a request that must succeed.
pub(super) fn call(server: SocketAddr, what: &str, request: &[u8]) -> Result<wire::Answer> {
    let answer = wire::call(server, request).map_err(|error| BenchError::set_up(what, error))?;
    if (200..300).contains(&answer.status) {
        Ok(answer)
    } else {
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        Err(BenchError::set_up(what, format!("HTTP {}: {text}", answer.status)))
    }
}

/// Sends requests that must all succeed. Returns the bodies of the answers in the order of the requests.
pub(crate) fn send_all(
    plan: &Plan,
    requests: Vec<Vec<u8>>,
    what: &str,
    progress: &crate::bench::load::progress::Bar,
    interrupted: &Arc<AtomicBool>,
) -> Result<Vec<Vec<u8>>> {
    struct All {
        requests: std::iter::Enumerate<std::vec::IntoIter<Vec<u8>>>,
        under_way: Vec<usize>,
        answers: Vec<Vec<u8>>,
    }
    impl Script for All {
        fn begin(&mut self, slot: usize) -> Option<Outgoing> {
            let (index, bytes) = self.requests.next()?;
            self.under_way[slot] = index;
            Some(Outgoing { bytes, kind: 0 })
        }

        fn answer(&mut self, slot: usize, status: u16, body: &[u8]) -> (u64, Next) {
            if !(200..300).contains(&status) {
                let text: String = String::from_utf8_lossy(body).chars().take(300).collect();
                return (0, Next::Failed(format!("HTTP {status}: {text}")));
            }
            body.clone_into(&mut self.answers[self.under_way[slot]]);
            (1, Next::Done)
        }
    }
    struct Shown<'a>(&'a crate::bench::load::progress::Bar, u64);
    impl generator::Observer for Shown<'_> {
        fn ticks(&mut self, watch: &generator::Watch) {
            self.0.set(self.1 + watch.ops());
        }
    }
    let script = All {
        answers: vec![Vec::new(); requests.len()],
        under_way: vec![0; plan.clients],
        requests: requests.into_iter().enumerate(),
    };
    let (outcome, mut scripts) =
        generator::run(plan, vec![script], &mut Shown(progress, progress.position()), interrupted)?;
    match outcome.errors.into_iter().next() {
        Some((reason, _)) => Err(BenchError::set_up(what, reason)),
        None => Ok(scripts.pop().map(|script| script.answers).unwrap_or_default()),
    }
}

/// An address of this machine.
pub(super) fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A free port, given to nobody else.
pub(super) fn free_port() -> Result<u16> {
    batzen_testkit::ports::reserve().map_err(|error| BenchError::set_up("no free port", error))
}

/// The configuration of one process of the exchange, which sets itself up. All have the public URL of the first.
fn configuration(plan: &WorldPlan, bank_port: u16, exchange_port: u16, public_port: u16) -> String {
    let run = service::runtime_dir(exchange_port);
    let shared = sections(plan, &run, bank_port, exchange_port, public_port);
    format!(
        "{shared}
[exchange]
AGGREGATOR_IDLE_SLEEP_INTERVAL = 1 s
TRANSFER_IDLE_SLEEP_INTERVAL = 1 s
CLOSER_IDLE_SLEEP_INTERVAL = 60 s
WIREWATCH_IDLE_SLEEP_INTERVAL = 1 s

[exchange-standalone]
ENABLED = YES
WIRE_FEE = {CURRENCY}:0.01
CLOSING_FEE = {CURRENCY}:0.01
"
    )
}

/// The sections that all set-ups have: a bank, an exchange with its account there, keys for a day, and the
/// denominations of the plan without fees.
pub(super) fn sections(
    plan: &WorldPlan,
    runtime_dir: &Path,
    bank_port: u16,
    exchange_port: u16,
    public_port: u16,
) -> String {
    let (home, run) = (plan.dir.join("home"), runtime_dir.display());
    let mut text = format!(
        "# Written by `batzen-lab bench`.
[taler]
CURRENCY = {CURRENCY}
CURRENCY_ROUND_UNIT = {CURRENCY}:0.01

[paths]
TALER_DATA_HOME = {home}
TALER_RUNTIME_DIR = {run}

[bank]
HTTP_PORT = {bank_port}
BIND_TO = 127.0.0.1

[exchange]
PORT = {exchange_port}
BASE_URL = http://localhost:{public_port}/
BIND_TO = 127.0.0.1

[taler-exchange-secmod-rsa]
LOOKAHEAD_SIGN = 1 day

[taler-exchange-secmod-cs]
LOOKAHEAD_SIGN = 1 day

[taler-exchange-secmod-eddsa]
LOOKAHEAD_SIGN = 1 day

[exchange-account-1]
PAYTO_URI = {PAYTO}
ENABLE_CREDIT = YES
ENABLE_DEBIT = YES

[exchange-accountcredentials-1]
WIRE_GATEWAY_URL = http://localhost:{bank_port}/taler-wire-gateway/{ACCOUNT}/
WIRE_GATEWAY_AUTH_METHOD = none
",
        home = home.display(),
    );
    text.extend(plan.database.as_deref().map(Database::configuration));
    text.push_str(&plan.more_sections);
    for kind in &plan.coins {
        let (name, cipher) = match kind.cipher {
            Cipher::Rsa(bits) => (format!("rsa{bits}"), format!("CIPHER = RSA\nRSA_KEYSIZE = {bits}")),
            Cipher::Cs => ("cs".to_owned(), "CIPHER = CS".to_owned()),
        };
        text.push_str(&format!(
            "
[coin_{value}_{name}]
VALUE = {CURRENCY}:{value}
DURATION_WITHDRAW = 7 days
DURATION_SPEND = 2 years
DURATION_LEGAL = 3 years
FEE_WITHDRAW = {CURRENCY}:0
FEE_DEPOSIT = {CURRENCY}:0
FEE_REFRESH = {CURRENCY}:0
FEE_REFUND = {CURRENCY}:0
{cipher}
",
            value = kind.value
        ));
    }
    text
}
