//! The bank, the exchange, the shops, the people, and the state that is saved.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use batzen_bank::{Bank, BankConfig, BankError, LedgerAddress, RunningBank};
use batzen_cli_support::progress;
use batzen_cli_support::services::TimeShift;
use batzen_crypto::{EddsaPrivateKey, WireSalt};
use batzen_exchange::app::Exchange;
use batzen_exchange::error::StartError;
use batzen_exchange::metrics::flow::MoneyFlow;
use batzen_exchange::reads::totals::{Totals, totals};
use batzen_exchange::service::{RunningExchange, StartOptions};
use batzen_http::client::{Client, ClientOptions};
use batzen_merchant::TrustedExchange;
use batzen_protocol::{Currency, Money};
use batzen_testkit::ports;
use batzen_wallet::Wallet;
use serde::{Deserialize, Serialize};

use super::books::Books;
use super::identify;
use super::merchant::Merchant;
use super::shops::{Shops, Surroundings};
use batzen_exchange::play_money;
use batzen_exchange::reads::sheet::BalanceSheet;

/// The exchange's account at the bank.
pub(crate) const EXCHANGE_ACCOUNT: &str = "exchange";
/// The host name in payto URIs.
pub(crate) const HOSTNAME: &str = "localhost";
const CURRENCY: &str = "KUDOS";
/// The sign-up bonus of new accounts. It is all the play money that a customer has: nobody may overdraw, or
/// one customer could flood the exchange.
pub(crate) const SIGNUP_BONUS: &str = "1000";

pub(crate) struct Options {
    /// The bank's port; `None`: that of the last run, or the documented one, or a free one.
    pub bank_port: Option<u16>,
    /// The exchange's port; `None`: that of the first run, or the documented one, or a free one.
    pub exchange_port: Option<u16>,
    /// The same for the merchant backend.
    pub(crate) merchant_port: Option<u16>,
    /// The same for the bookshop.
    pub(crate) shop_port: Option<u16>,
    /// Key size of RSA denominations in bits.
    pub(crate) rsa_bits: u32,
    /// Whether to offer coins in Clause Blind Schnorr, too.
    pub cs: bool,
    /// Whether the services keep running after the round. Only then do people use them, and expect the
    /// documented ports.
    pub(crate) keeps_serving: bool,
    /// Where the bank's money is held.
    pub ledger: LedgerAddress,
}

/// The people with wallets.
pub(crate) const PEOPLE: [&str; 3] = ["alice", "bob", "carol"];

/// The child, with a wallet of her own.
pub(crate) const CHILD: &str = "emma";

/// The customer who withdraws more than strangers may: a new one in each round, named by this and its number.
pub(crate) const CUSTOMER: &str = "frank";

/// The documented ports.
const BANK_PORT: u16 = 8082;
const EXCHANGE_PORT: u16 = 8081;
const MERCHANT_PORT: u16 = 9966;
const SHOP_PORT: u16 = 8083;

/// The name of the state file.
const STATE_FILE: &str = "demo.json";

/// The state that is saved in addition to stores, keys and wallets.
#[derive(Serialize, Deserialize)]
struct SavedState {
    /// The number of rounds begun.
    runs: u64,
    /// Whether the last one was completed.
    is_finished: bool,
    bank_port: u16,
    /// Wallets identify the exchange by its URL, so it keeps its port.
    exchange_port: u16,
    /// Contracts name the merchant backend's and the bookshop's URLs. 0 if an earlier version had none.
    #[serde(default)]
    merchant_port: u16,
    #[serde(default)]
    shop_port: u16,
    merchant_priv: EddsaPrivateKey,
    wire_salt: WireSalt,
}

/// All participants of the demo.
pub(crate) struct World {
    /// The directory of all data.
    pub dir: PathBuf,
    /// The URL of the books' database, if they are not in the directory.
    pub database: Option<String>,
    pub currency: Currency,
    /// The number of this round, from 1.
    pub run: u64,
    pub bank: RunningBank,
    pub exchange: RunningExchange,
    pub merchant: Merchant,
    /// The merchant backend and the bookshop.
    pub shops: Shops,
    /// For calls made by neither wallet nor merchant.
    pub client: Client,
    /// Whether the previous round was interrupted.
    pub(crate) follows_interruption: bool,
    /// Whether coins are also offered in Clause Blind Schnorr.
    pub cs: bool,
    /// The token of the clerk who identifies customers.
    pub(crate) officer_token: String,
    saved: SavedState,
}

impl World {
    /// Starts bank and exchange, opens their accounts, and waits until wallets can use them.
    ///
    /// # Errors
    /// Ports in use, directories used by another demo, damaged stores.
    pub(crate) async fn start(
        dir: &Path,
        books: &Books,
        options: &Options,
        shows_progress: bool,
    ) -> anyhow::Result<Self> {
        let currency: Currency = CURRENCY.parse().context("currency")?;
        let file = dir.join(STATE_FILE);
        let mut saved = match SavedState::read(&file)? {
            Some(saved) => saved,
            None => SavedState::new(options)?,
        };
        saved.choose_shop_ports(options)?;
        if let Some(port) = options.exchange_port {
            ensure!(
                port == saved.exchange_port || port == 0,
                "the wallets in {} know their exchange at port {}: use --exchange-port {0} or another --data directory",
                saved.exchange_port,
                dir.display()
            );
        }
        saved.bank_port = options.bank_port.unwrap_or(saved.bank_port);
        let exchange_url = format!("http://localhost:{}/", saved.exchange_port);

        let bank = match Bank::start(BankConfig {
            http_port: saved.bank_port,
            hostname: HOSTNAME.to_owned(),
            suggested_exchange: Some(exchange_url),
            signup_bonus: SIGNUP_BONUS.parse().context("sign-up bonus")?,
            debt_limit: Some(Money::ZERO),
            store: books.store_config(&dir.join("bank")),
            ledger: options.ledger.clone(),
            ..BankConfig::new(currency)
        })
        .await
        {
            Err(BankError::Bind(error)) => {
                bail!(
                    "cannot listen on port {} for the bank: {error}; choose another with --bank-port",
                    saved.bank_port
                )
            }
            other => other.context("bank")?,
        };
        saved.bank_port = bank.addr.port();
        let follows_interruption = !saved.is_finished;
        saved.runs += 1;
        saved.is_finished = false;
        saved.write(&file)?;

        let client = Client::new(&ClientOptions::default())?;
        play_money::open_account(&client, &bank.base_url, EXCHANGE_ACCOUNT, EXCHANGE_ACCOUNT)
            .await
            .context("open the exchange's account")?;
        let merchant = Merchant::new(saved.merchant_priv.clone(), saved.wire_salt, HOSTNAME);
        play_money::open_account(&client, &bank.base_url, merchant.account(), merchant.account())
            .await
            .context("open the merchant's account")?;

        let (payto, gateway) = play_money::account(&bank.base_url, HOSTNAME, EXCHANGE_ACCOUNT);
        let mut config = play_money::exchange_config(
            currency,
            dir,
            saved.exchange_port,
            options.rsa_bits,
            options.cs,
            true,
        )
        .with_account("exchange-account-1", &payto, gateway);
        let officer_token = identify::token(dir)?;
        config.kyc = identify::limits(dir, &officer_token)?;
        if books.url().is_some() {
            config.store = books.store_config(dir);
            let store = config.store.clone();
            let prepare = move || store.prepare(&batzen_service::storage::EXCHANGE);
            tokio::task::spawn_blocking(prepare).await?.context("the exchange's tables")?;
        }
        let start = StartOptions {
            clock: TimeShift::default().clock(),
            // The round runs them itself, so that refunds come before the aggregation on machines of any
            // speed.
            workers: false,
            progress: progress::of_keys(shows_progress),
            ..StartOptions::default()
        };
        let exchange = match RunningExchange::start(config, start).await {
            Err(StartError::Listen(error)) => bail!(
                "cannot listen on port {} for the exchange: {error}; choose another with --exchange-port",
                saved.exchange_port
            ),
            other => other.context("exchange")?,
        };
        exchange.ready().await?;
        let at = Surroundings {
            dir,
            books,
            currency,
            exchange: TrustedExchange {
                url: exchange.base_url().to_owned(),
                master_pub: *exchange.app().keys().master_pub(),
            },
            bank_url: &bank.base_url,
            client: &client,
        };
        let shops = Shops::start(at, saved.merchant_port, saved.shop_port).await?;
        let (dir, run) = (dir.to_owned(), saved.runs);
        let database = books.url().map(str::to_owned);
        Ok(Self {
            dir,
            database,
            currency,
            run,
            bank,
            exchange,
            merchant,
            shops,
            client,
            follows_interruption,
            cs: options.cs,
            officer_token,
            saved,
        })
    }

    /// Records that the round was completed.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.saved.is_finished = true;
        self.saved.write(&self.dir.join(STATE_FILE))
    }

    /// The shared parts of the exchange.
    pub(crate) fn app(&self) -> &Arc<Exchange> {
        self.exchange.app()
    }

    /// The file of a person's wallet.
    pub(crate) fn wallet_file(&self, name: &str) -> PathBuf {
        self.dir.join("wallets").join(format!("{name}.db"))
    }

    /// A sentence about services on other ports than the documented ones; empty if there are none.
    pub(crate) fn other_ports(&self) -> String {
        let ports = [
            ("bank", self.saved.bank_port, BANK_PORT),
            ("exchange", self.saved.exchange_port, EXCHANGE_PORT),
            ("merchant backend", self.saved.merchant_port, MERCHANT_PORT),
            ("bookshop", self.saved.shop_port, SHOP_PORT),
        ];
        let others = ports.iter().filter(|(_, port, documented)| port != documented);
        let words = others.map(|(name, port, documented)| {
            format!("The {name} is at port {port}, not at {documented} as in the documents.\n")
        });
        words.collect()
    }

    /// A person's wallet, new or from an earlier round.
    pub(crate) fn wallet(&self, name: &str) -> anyhow::Result<Wallet> {
        batzen_cli_support::services::directory(&self.dir.join("wallets"))?;
        Wallet::open(&self.wallet_file(name)).with_context(|| format!("wallet of {name}"))
    }

    /// Both sides of the books. Call it only while no money moves.
    pub(crate) async fn sheet(&self) -> anyhow::Result<BalanceSheet> {
        let flow = self.bank.account_flow(EXCHANGE_ACCOUNT).await?;
        let shown = batzen_bank::books::history_flow(self.bank.store(), EXCHANGE_ACCOUNT)?;
        let app = Arc::clone(self.app());
        let read = move || {
            let (store, rules) = (&app.core.store, &app.core.rules);
            // On a database the running sums are as old as the last reading, so read them now.
            if !rules.flow.follows_commits() {
                let rows = MoneyFlow::freeze(store)?;
                rules.flow.recompute(&rules.denoms, store, &*rows)?;
            }
            anyhow::Ok(totals(store, &rules.denoms)?)
        };
        let totals = tokio::task::spawn_blocking(read).await??;
        self.check_flow(&totals)?;
        Ok(BalanceSheet {
            currency: self.currency,
            bank_in: flow.incoming_with_reserve_pub,
            bank_out: flow.outgoing_transfers,
            histories: (shown.incoming_with_reserve_pub, shown.outgoing_transfers),
            totals,
        })
    }

    /// Checks that the running sums in the metrics equal those of the rows.
    fn check_flow(&self, totals: &Totals) -> anyhow::Result<()> {
        // `None` while a long history is still being added up.
        let Some(sums) = self.app().core.rules.flow.sums() else { return Ok(()) };
        let is_same = [
            (sums.wired_in, totals.wired_in),
            (sums.wired_out, totals.wired_out),
            (sums.reserves, totals.reserves),
            (sums.outstanding(), totals.outstanding),
            (sums.pending(), totals.pending),
        ]
        .iter()
        .all(|(sum, money)| u128::try_from(*sum) == Ok(money.units()));
        ensure!(is_same, "the running sums {sums:?} are not those of the rows {totals:?}");
        Ok(())
    }

    /// Lets the workers run from now on.
    pub(crate) fn start_workers(&self) {
        self.exchange.start_workers();
    }

    /// The balance sheet when all money has arrived: while others use the exchange, some is in transit between
    /// it and the bank. After `patience` the last sheet counts.
    pub(crate) async fn final_sheet(&self, patience: Duration) -> anyhow::Result<BalanceSheet> {
        let deadline = Instant::now() + patience;
        loop {
            let sheet = self.sheet().await;
            if Instant::now() >= deadline || sheet.as_ref().is_ok_and(BalanceSheet::conserved) {
                return sheet;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The wallets in the demo's directory that the round has not made.
    pub(crate) fn other_wallets(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.dir.join("wallets")).into_iter().flatten().flatten();
        let files =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "db"));
        let is_ours = |path: &PathBuf| {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let is_customer = |stem: &str| {
                let number = stem.strip_prefix(CUSTOMER);
                number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
            };
            PEOPLE.iter().chain([&CHILD]).any(|name| stem == Some(name)) || stem.is_some_and(is_customer)
        };
        files.filter(|path| !is_ours(path)).collect()
    }

    /// Shuts down the shops, the exchange and the bank; everything answered is durable.
    pub(crate) async fn shutdown(self) -> anyhow::Result<()> {
        let shops = self.shops.shutdown().await;
        let exchange = self.exchange.shutdown().await.context("close the exchange's store");
        self.bank.shutdown().await.context("close the bank's store")?;
        shops.and(exchange)
    }
}

impl SavedState {
    /// Chooses the ports of the merchant backend and the bookshop: those asked for, those of the first run, or
    /// the documented ones.
    fn choose_shop_ports(&mut self, options: &Options) -> anyhow::Result<()> {
        for (port, wanted, documented) in [
            (&mut self.merchant_port, options.merchant_port, MERCHANT_PORT),
            (&mut self.shop_port, options.shop_port, SHOP_PORT),
        ] {
            *port = match wanted {
                Some(0) => ports::reserve()?,
                Some(wanted) => wanted,
                None if *port != 0 => *port,
                None => port_like(options.keeps_serving.then_some(documented))?,
            };
        }
        Ok(())
    }

    fn new(options: &Options) -> anyhow::Result<Self> {
        let mut salt = [0; 16];
        batzen_crypto::fill_random(&mut salt);
        let documented = |port| if options.keeps_serving { Some(port) } else { None };
        let exchange_port = match options.exchange_port {
            Some(0) => ports::reserve()?,
            Some(port) => port,
            None => port_like(documented(EXCHANGE_PORT))?,
        };
        Ok(Self {
            runs: 0,
            is_finished: true,
            bank_port: options.bank_port.map_or_else(|| port_like(documented(BANK_PORT)), Ok)?,
            exchange_port,
            merchant_port: 0,
            shop_port: 0,
            merchant_priv: EddsaPrivateKey::generate(),
            wire_salt: WireSalt::from_bytes(salt),
        })
    }

    fn read(file: &Path) -> anyhow::Result<Option<Self>> {
        match std::fs::read(file) {
            Ok(text) => serde_json::from_slice(&text).map(Some).with_context(|| file.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| file.display().to_string()),
        }
    }

    /// Atomically, because the file contains the merchant's key.
    fn write(&self, file: &Path) -> anyhow::Result<()> {
        let fresh = file.with_extension("json.new");
        let mut out = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .with_context(|| fresh.display().to_string())?;
        serde_json::to_writer_pretty(&mut out, self)?;
        out.write_all(b"\n")?;
        out.sync_all()?;
        std::fs::rename(&fresh, file).with_context(|| file.display().to_string())
    }
}

/// The wanted port if it is free, otherwise another one.
fn port_like(wanted: Option<u16>) -> anyhow::Result<u16> {
    match wanted {
        Some(port) if TcpListener::bind(("127.0.0.1", port)).is_ok() => Ok(port),
        _ => Ok(ports::reserve()?),
    }
}
