//! The round, step by step. Each step uses real HTTP between wallet, merchant, exchange and bank.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration as StdDuration;

use anyhow::{Context, bail, ensure};
use batzen_crypto::{EddsaPrivateKey, HashCode};
use batzen_exchange::workers::{aggregator, transfer, wirewatch};
use batzen_protocol::api::errors::CoinConflict;
use batzen_protocol::api::exchange::{DepositRequest, ReserveBalance};
use batzen_protocol::signatures::{SignedMessage, WalletCoinDeposit};
use batzen_protocol::{Amount, Duration, ErrorCode, Money, Timestamp};
use batzen_service::wire_gateway::{
    AddIncomingRequest, GatewayAuth, HistoryQuery, OutgoingTransaction, WireGatewayClient,
};
use batzen_wallet::core::OpId;
use batzen_wallet::core::coin::CoinSource;
use batzen_wallet::core::http::{HttpRequest, HttpResponse};
use batzen_wallet::transport::{HttpTransport, ResponseFuture, Transport, TransportError};
use batzen_wallet::{CipherChoice, CoinStatus, Exchange, RunUntil, Wallet, WalletOptions};

use super::audit;
use super::books::Books;
use super::merchant::{Paid, Sale, deadline};
use super::proof;
use super::report::{Failed, Report, StepSummary};
use super::world::{EXCHANGE_ACCOUNT, HOSTNAME, Options, PEOPLE as NAMES, World};
use batzen_exchange::play_money;
use batzen_exchange::reads::sheet::BalanceSheet;

/// Time limit for anything that should be quick.
pub(super) const PATIENCE: StdDuration = StdDuration::from_secs(120);
/// Interval at which the bank is asked for new money while the round is played.
const WATCH_PAUSE: StdDuration = StdDuration::from_millis(30);
/// The refund period of the round's sales, short so that the transfers come soon.
const REFUNDABLE: Duration = Duration::from_secs(1);
/// The same for the sale that stays unpaid.
const REFUNDABLE_LONG: Duration = Duration::from_secs(3_600);

/// Somebody with a wallet.
pub(super) struct Person {
    pub(super) name: &'static str,
    pub(super) wallet: Wallet,
    /// The amounts to withdraw, and the kind of coins.
    pub(super) withdrawals: Withdrawals,
}

/// The withdrawals of one person, each in coins of one cipher.
pub(super) type Withdrawals = &'static [(&'static str, CipherChoice)];

/// Name, withdrawals from an exchange with RSA coins only, and from one that also offers Clause Schnorr
/// coins.
const PEOPLE: [(&str, Withdrawals, Withdrawals); 3] = [
    (NAMES[0], &[("20", CipherChoice::Rsa)], &[("20", CipherChoice::Rsa)]),
    (NAMES[1], &[("20", CipherChoice::Rsa)], &[("20", CipherChoice::Cs)]),
    (
        NAMES[2],
        &[("10", CipherChoice::Rsa), ("10", CipherChoice::Rsa)],
        &[("10", CipherChoice::Rsa), ("10", CipherChoice::Cs)],
    ),
];

/// Starts bank and exchange as the first step.
///
/// # Errors
/// When they do not start. Without them there is nothing to report.
pub(crate) async fn start(
    report: &mut Report,
    dir: &Path,
    books: &Books,
    options: &Options,
) -> anyhow::Result<World> {
    let shows_progress = report.is_interactive();
    let mut reason = None;
    let step = report.step("start", "starting bank, exchange and shops", async {
        match World::start(dir, books, options, shows_progress).await {
            Ok(world) => {
                let count = world.app().keys().denoms().len();
                let ciphers = if options.cs { "RSA and Clause Schnorr" } else { "RSA" };
                let summary = format!(
                    "bank, exchange and a bookshop are up, {count} kinds of coins ({ciphers}), run {} in {}",
                    world.run,
                    dir.display()
                );
                Ok((world, StepSummary { count, summary }))
            }
            Err(error) => {
                let text = format!("{error:#}");
                reason = Some(error);
                bail!(text)
            }
        }
    });
    let result = step.await;
    result.map_err(|Failed| reason.unwrap_or_else(|| anyhow::anyhow!("the start failed")))
}

/// Plays the round and draws up the balance sheet, even after a failed step, because the books must always
/// balance.
///
/// # Errors
/// When there is no balance sheet. The report prints failed steps.
pub(crate) async fn play(report: &mut Report, world: &World) -> anyhow::Result<BalanceSheet> {
    let watch = Watch::start(world);
    let round = Round { world, exchange_url: world.exchange.base_url() };
    // The failure has been printed; later steps would fail for the same reason.
    let _ = round.steps(report).await;
    watch.stop().await;
    let result = report
        .step("balance", "drawing up the balance sheet", async {
            let sheet = round.settled_sheet().await?;
            ensure!(
                sheet.totals.wired_in == sheet.bank_in,
                "the bank's incoming transfers are not those that the exchange booked"
            );
            ensure!(
                sheet.totals.wired_out == sheet.bank_out,
                "the bank's outgoing transfers are not those that the exchange ordered"
            );
            ensure!(sheet.conserved(), "the books do not add up: {}", sheet.json());
            let summary =
                "bank_in = bank_out + reserves + outstanding + pending + purses + unrevealed_melts + fees"
                    .to_owned();
            Ok((sheet, StepSummary { count: 7, summary }))
        })
        .await;
    match result {
        Ok(sheet) => {
            // A failure has been printed, and is part of the report.
            let _ = round.audited(report, &sheet).await;
            Ok(sheet)
        }
        Err(Failed) => round.settled_sheet().await,
    }
}

/// Checks for incoming transfers while the round is played.
struct Watch {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Watch {
    fn start(world: &World) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (app, stopped) = (Arc::clone(world.app()), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Acquire) {
                if let Err(error) = wirewatch::run_until_idle(&app.core).await {
                    tracing::warn!(%error, "incoming transfers cannot be read");
                }
                tokio::time::sleep(WATCH_PAUSE).await;
            }
        });
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Release);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "wirewatch ended abnormally");
        }
    }
}

pub(super) struct Round<'a> {
    pub(super) world: &'a World,
    pub(super) exchange_url: &'a str,
}

impl Round<'_> {
    pub(super) fn now(&self) -> Timestamp {
        self.world.app().core.now()
    }

    fn money(text: &str) -> anyhow::Result<Money> {
        text.parse().context("amount")
    }

    pub(super) fn amount(&self, text: &str) -> anyhow::Result<Amount> {
        Ok(Self::money(text)?.of(self.world.currency))
    }

    pub(super) fn gateway(&self) -> WireGatewayClient {
        let url = self.world.bank.wire_gateway_url(EXCHANGE_ACCOUNT);
        WireGatewayClient::new(self.world.client.clone(), &url, GatewayAuth::None)
    }

    async fn audited(&self, report: &mut Report, sheet: &BalanceSheet) -> Result<(), Failed> {
        report
            .step("audit", "checking every row and signature again", audit::audit(self.world, sheet))
            .await?;
        report.step("audit-tampered", "changing a copy of the books", audit::audit_tampered(self.world)).await
    }

    async fn steps(&self, report: &mut Report) -> Result<(), Failed> {
        let people = report.step("resume", "opening wallets", self.resume()).await?;
        let exchange =
            report.step("exchange", "reading what the exchange publishes", self.meet(&people)).await?;
        report.step("withdraw", "withdrawing coins at the bank", self.withdraw(&people)).await?;
        report.step("reserve", "sending money that nobody withdraws yet", self.leave_reserve()).await?;
        let mut sales = report.step("pay", "paying the merchant", self.pay(&people, &exchange)).await?;
        report.step("change", "making change", self.change(&people)).await?;
        report.step("refund", "giving money back", self.refund(&people, &exchange, &mut sales)).await?;
        report
            .step("double-spend", "spending a coin twice", self.double_spend(&people, &exchange, &sales))
            .await?;
        let before = report
            .step("aggregate", "waiting for the deadlines, aggregating", self.aggregate(&sales))
            .await?;
        report
            .step("transfer", "paying the merchant's bank account", self.transfer(&exchange, &sales, before))
            .await?;
        report
            .step(
                "pending",
                "paying for something that may still be given back",
                self.pay_later(&people[0], &exchange),
            )
            .await?;
        report.step("send", "sending money to somebody", self.send(&people[0], &people[1])).await?;
        report.step("request", "asking somebody for money", self.request(&people[1], &people[2])).await?;
        report.step("expire", "sending money that nobody takes", self.expire(&people[2])).await?;
        report.step("ages", "paying with pocket money", self.ages(&people[1])).await?;
        report.step("identify", "withdrawing more than strangers may", self.identify()).await?;
        let visit = report.step("order", "ordering in the bookshop", self.order()).await?;
        let contract = report.step("pay-shop", "paying the bookshop", self.pay_shop(&visit)).await?;
        report
            .step("refund-shop", "giving an article back", self.refund_shop(&exchange, &visit, contract))
            .await?;
        report.step("tip", "giving a tip", self.tip()).await?;
        report.step("settled", "selling in the sandbox, and waiting for its money", self.settled()).await?;
        report.step("purse", "leaving money in a purse", self.leave_purse(&people[0])).await?;
        drop(people);
        report
            .step("unrevealed", "losing a wallet's connection in the middle of change", self.lose_change())
            .await
    }

    /// Opens the wallets, and completes work left over from an earlier run.
    async fn resume(&self) -> anyhow::Result<(Vec<Person>, StepSummary)> {
        let mut people = Vec::new();
        let mut count = 0;
        for (name, rsa_only, with_cs) in PEOPLE {
            let withdrawals = if self.world.cs { with_cs } else { rsa_only };
            let wallet = self.world.wallet(name)?;
            Self::take_back(&wallet)?;
            // A withdrawal may still be waiting for the bank.
            let finished = wallet.run(RunUntil::Finished(Some(PATIENCE))).await?;
            ensure!(
                finished.pending.is_empty(),
                "{name}: an operation of an earlier run cannot be finished: {:?}",
                finished.pending
            );
            count += finished.finished.len();
            people.push(Person { name, wallet, withdrawals });
        }
        if self.world.follows_interruption {
            // Pays the sales of the earlier round, so that this round's transfer covers only this round's
            // sales.
            self.pay_due(deadline(self.now(), REFUNDABLE)).await?;
            transfer::run_until_idle(&self.world.app().core).await?;
        }
        let summary = match count {
            0 if self.world.cs => "three wallets: alice (RSA), bob (Clause Schnorr), carol (both)".to_owned(),
            0 => "three wallets: alice, bob, carol".to_owned(),
            count => format!("three wallets have finished {count} operations that an earlier run left open"),
        };
        Ok((people, StepSummary { count, summary }))
    }

    /// Everybody fetches and checks the exchange's published data, and accepts its terms.
    async fn meet(&self, people: &[Person]) -> anyhow::Result<(Exchange, StepSummary)> {
        let mut known = None;
        for person in people {
            let exchange = person.wallet.add_exchange(self.exchange_url).await.context(person.name)?;
            person.wallet.accept_terms(self.exchange_url)?;
            known = Some(exchange);
        }
        let exchange = known.context("nobody is there")?;
        let count = exchange.denoms.len();
        let summary = format!("{count} denominations, fees and accounts verified under the master key");
        Ok((exchange, StepSummary { count, summary }))
    }

    /// Bank-integrated withdrawals, all at the same time.
    async fn withdraw(&self, people: &[Person]) -> anyhow::Result<((), StepSummary)> {
        let bank_url = &self.world.bank.base_url;
        let mut total = Money::ZERO;
        let mut tasks = tokio::task::JoinSet::new();
        for person in people {
            for (amount, cipher) in person.withdrawals {
                let amount = self.amount(amount)?;
                total = total.checked_add(amount.money)?;
                let (wallet, name, cipher) = (person.wallet.clone(), person.name, *cipher);
                let (bank_url, exchange_url) = (bank_url.clone(), self.exchange_url.to_owned());
                tasks.spawn(async move {
                    let id = wallet
                        .withdraw_from_bank(&bank_url, name, name, amount, Some(&exchange_url), cipher)
                        .await
                        .context(name)?;
                    wallet.finish_within(id, PATIENCE).await.context(name)?;
                    anyhow::Ok((coins_of(&wallet, id, cipher)?, cipher))
                });
            }
        }
        let (mut count, mut rsa) = (0, 0);
        while let Some(done) = tasks.join_next().await {
            let (coins, cipher) = done??;
            count += coins;
            rsa += if cipher == CipherChoice::Rsa { coins } else { 0 };
        }
        let mut summary =
            format!("{} withdrawn as {count} blindly signed coins", total.of(self.world.currency));
        if self.world.cs {
            summary.push_str(&format!(": {rsa} RSA, {} Clause Schnorr", count - rsa));
        }
        Ok(((), StepSummary { count, summary }))
    }

    /// Sends money to a reserve from which nothing is withdrawn. Its key is kept.
    async fn leave_reserve(&self) -> anyhow::Result<((), StepSummary)> {
        let key = EddsaPrivateKey::generate();
        let reserve_pub = key.public_key();
        let dir = batzen_cli_support::services::directory(&self.world.dir.join("reserves"))?;
        std::fs::write(dir.join(format!("{reserve_pub}.json")), serde_json::to_vec(&key)?)?;
        let amount = self.amount("3.5")?;
        play_money::open_account(&self.world.client, &self.world.bank.base_url, "dora", "dora").await?;
        let debit_account = format!("payto://x-taler-bank/{HOSTNAME}/dora?receiver-name=dora");
        self.gateway().add_incoming(&AddIncomingRequest { amount, reserve_pub, debit_account }).await?;
        // The answer waits until the money has arrived.
        let url = format!("{}reserves/{reserve_pub}", self.exchange_url);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let reply = self.world.client.get(&url).query("timeout_ms", 5_000).send().await?;
            match reply.status {
                200 => {
                    let status: ReserveBalance = reply.json()?;
                    ensure!(
                        status.balance == amount,
                        "the reserve has {} instead of {amount}",
                        status.balance
                    );
                    break;
                }
                404 if tokio::time::Instant::now() < deadline => {}
                _ => return Err(reply.status_error().into()),
            }
        }
        let summary = format!("{amount} wait in a reserve for their owner");
        Ok(((), StepSummary { count: 1, summary }))
    }

    fn sale(&self, amount: &str, what: &str, refundable: Duration) -> anyhow::Result<Sale> {
        let until = deadline(self.now(), refundable);
        self.world.merchant.sell(self.exchange_url, self.amount(amount)?, what, until)
    }

    async fn buy(&self, person: &Person, exchange: &Exchange, sale: Sale) -> anyhow::Result<Paid> {
        let receipt = person.wallet.pay(&sale.request).await.context(person.name)?;
        self.world.merchant.check(sale, receipt, exchange, self.now()).context(person.name)
    }

    /// Everybody buys something whose price requires change.
    async fn pay(&self, people: &[Person], exchange: &Exchange) -> anyhow::Result<(Vec<Paid>, StepSummary)> {
        let mut sales = Vec::new();
        for (person, amount, what) in
            [(&people[0], "7.53", "a book"), (&people[1], "3.21", "bread"), (&people[2], "4.44", "a film")]
        {
            let sale = self.sale(amount, what, REFUNDABLE)?;
            sales.push(self.buy(person, exchange, sale).await?);
        }
        let count: usize = sales.iter().map(|paid| paid.receipt.coins.len()).sum();
        let summary = format!(
            "3 payments with {count} coins, each confirmed by the exchange and checked by the merchant"
        );
        Ok((sales, StepSummary { count, summary }))
    }

    /// The rest on the coins that paid is turned into fresh coins, which nobody can link to the old ones.
    async fn change(&self, people: &[Person]) -> anyhow::Result<((), StepSummary)> {
        let mut count = 0;
        for person in people {
            count += make_change(person).await?;
        }
        ensure!(count > 0, "no payment needed change");
        let summary = format!("{count} fresh coins as change, unlinkable to the payments");
        Ok(((), StepSummary { count, summary }))
    }

    /// One payment is refunded completely and one in part, before the merchant is paid for them.
    async fn refund(
        &self,
        people: &[Person],
        exchange: &Exchange,
        sales: &mut Vec<Paid>,
    ) -> anyhow::Result<((), StepSummary)> {
        let mut count = 0;
        for (person, price, back, what) in [
            (&people[0], "2.30", None, "a broken lamp"),
            (&people[1], "3.00", Some("1.25"), "a scratched table"),
        ] {
            let sale = self.sale(price, what, REFUNDABLE)?;
            let mut paid = self.buy(person, exchange, sale).await?;
            let fee = exchange.denoms.values().map(|denom| denom.fee_refund).max().unwrap_or(Money::ZERO);
            let back = back.map(Self::money).transpose()?;
            let permissions = self.world.merchant.refund(&mut paid, back, fee)?;
            count += permissions.len();
            let h_contract_terms = paid.sale.request.h_contract_terms;
            person.wallet.refund(&h_contract_terms, &permissions).await.context(person.name)?;
            sales.push(paid);
            make_change(person).await?;
        }
        let summary =
            format!("one purchase given back completely, one in part: {count} coins refunded and renewed");
        Ok(((), StepSummary { count, summary }))
    }

    /// Spends a coin a second time. The exchange must refuse and prove why.
    async fn double_spend(
        &self,
        people: &[Person],
        exchange: &Exchange,
        sales: &[Paid],
    ) -> anyhow::Result<((), StepSummary)> {
        let mut events = 0;
        let mut count = 0;
        for (person, paid) in people.iter().zip(sales) {
            let coin_pub = paid.receipt.coins.first().context("a payment without coins")?.coin_pub;
            let coins = person.wallet.coins();
            let coin =
                coins.iter().find(|coin| coin.coin_pub == coin_pub).context("the wallet forgot a coin")?;
            let denom = exchange.denom(&coin.h_denom_pub)?;
            let merchant = &self.world.merchant;
            let timestamp = deadline(self.now(), Duration::ZERO);
            let h_contract_terms = HashCode::random();
            let contribution = exchange.amount(denom.value);
            let message = WalletCoinDeposit {
                h_contract_terms,
                h_age_commitment: batzen_crypto::ShortHash::from_bytes([0; 32]),
                h_policy: HashCode::from_bytes([0; 64]),
                h_wire: merchant.h_wire(),
                h_denom_pub: coin.h_denom_pub,
                wallet_timestamp: timestamp,
                refund_deadline: Timestamp::ZERO,
                amount_with_fee: contribution,
                deposit_fee: exchange.amount(denom.fee_deposit),
                merchant_pub: merchant.key_pub,
            };
            let request = DepositRequest {
                merchant_payto_uri: merchant.payto.clone(),
                wire_salt: paid.sale.request.wire_salt,
                contribution,
                denom_pub_hash: coin.h_denom_pub,
                ub_sig: coin.denom_sig.clone(),
                merchant_pub: merchant.key_pub,
                h_contract_terms,
                h_age_commitment: None,
                coin_sig: message.sign(&coin.coin_priv),
                timestamp,
                refund_deadline: None,
                wire_transfer_deadline: timestamp,
                policy: None,
            };
            let url = format!("{}coins/{coin_pub}/deposit", self.exchange_url);
            let reply = self.world.client.post_json(url, &request).await?;
            ensure!(
                (reply.status, reply.code()) == (409, Some(ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS)),
                "a double spend was not refused as one: {}",
                reply.status_error()
            );
            let conflict: CoinConflict = reply.json()?;
            ensure!(conflict.h_denom_pub == coin.h_denom_pub, "the proof names another denomination");
            let remaining = proof::remaining(&conflict, &coin_pub, denom.value)?;
            ensure!(remaining < denom.value, "the proof does not prove that the coin was spent");
            events += conflict.history.len();
            count += 1;
        }
        let summary = format!("{count} coins spent twice: refused, and {events} signed events prove why");
        Ok(((), StepSummary { count, summary }))
    }

    /// Waits until the sales can no longer be refunded, and aggregates the merchant's deposits.
    async fn aggregate(&self, sales: &[Paid]) -> anyhow::Result<(Option<u64>, StepSummary)> {
        let before = self.outgoing().await?.iter().map(|row| row.row_id).max();
        let until =
            sales.iter().map(|paid| paid.sale.request.wire_transfer_deadline).max().context("no sales")?;
        self.pay_due(until).await?;
        let sheet = self.world.sheet().await?;
        ensure!(!sheet.totals.in_flight.is_zero(), "nothing was aggregated");
        let count: usize = sales.iter().map(|paid| paid.receipt.coins.len()).sum();
        let (currency, amount) = (self.world.currency, sheet.totals.in_flight);
        let summary = format!("{count} deposits became transfers of {currency}:{amount} together");
        Ok((before, StepSummary { count, summary }))
    }

    /// Waits until the given time, and then aggregates all deposits that are due by then.
    pub(super) async fn pay_due(&self, until: Timestamp) -> anyhow::Result<()> {
        // The aggregator works in whole seconds, and a little after the deadline.
        let until = until.saturating_add(Duration::from_secs(2));
        let wait = until.saturating_since(self.now()).to_std().unwrap_or_default();
        tokio::time::sleep(wait).await;
        let progress = aggregator::run_until_idle(&self.world.app().core).await?;
        ensure!(progress.set_aside == 0, "{} deposits could not be aggregated", progress.set_aside);
        Ok(())
    }

    /// The outgoing history of the exchange's account.
    pub(super) async fn outgoing(&self) -> anyhow::Result<Vec<OutgoingTransaction>> {
        const PAGE: i64 = 1000;
        let gateway = self.gateway();
        let mut rows: Vec<OutgoingTransaction> = Vec::new();
        loop {
            let start = rows.last().map_or(0, |row| row.row_id);
            let query = HistoryQuery { start: Some(start), delta: PAGE, long_poll_ms: 0 };
            let page = gateway.history_outgoing(query).await?;
            let is_last = page.is_empty();
            rows.extend(page);
            if is_last {
                return Ok(rows);
            }
        }
    }

    /// Has the bank execute the transfer, and traces every sale to the merchant's account.
    async fn transfer(
        &self,
        exchange: &Exchange,
        sales: &[Paid],
        before: Option<u64>,
    ) -> anyhow::Result<((), StepSummary)> {
        transfer::run_until_idle(&self.world.app().core).await?;
        let mut rows = self.outgoing().await?;
        rows.retain(|row| before.is_none_or(|before| row.row_id > before));
        let round_unit = self.world.app().core.config.currency_round_unit;
        let merchant = &self.world.merchant;
        let transfers =
            merchant.reconcile(&self.world.client, exchange, sales, &rows, round_unit, self.now()).await?;
        let count = transfers.len();
        ensure!(count > 0, "the merchant was not paid");
        let total = Money::checked_sum(transfers.values().copied())?.of(self.world.currency);
        let summary = format!(
            "{total} in {count} transfer to the merchant's account, found there and accounted for sale by sale"
        );
        Ok(((), StepSummary { count, summary }))
    }

    /// A sale that can be refunded for an hour, so the merchant has to wait for its money.
    async fn pay_later(&self, person: &Person, exchange: &Exchange) -> anyhow::Result<((), StepSummary)> {
        let sale = self.sale("1.15", "shoes on approval", REFUNDABLE_LONG)?;
        let paid = self.buy(person, exchange, sale).await?;
        make_change(person).await?;
        let count = paid.receipt.coins.len();
        let summary = format!("{} wait until they cannot be given back any more", paid.sale.request.amount);
        Ok(((), StepSummary { count, summary }))
    }

    /// Carol's connection breaks between melt and reveal. Her wallet has everything it needs to finish later.
    async fn lose_change(&self) -> anyhow::Result<((), StepSummary)> {
        let name = PEOPLE[2].0;
        let options = WalletOptions {
            transport: Arc::new(WithoutReveals(HttpTransport::new()?)),
            attempts: 1,
            ..WalletOptions::system()?
        };
        let wallet = Wallet::open_with(&self.world.wallet_file(name), options)?;
        for price in ["0.37", "1.61", "0.73", "2.84", "0.59"] {
            let sale = self.sale(price, "something small", REFUNDABLE_LONG)?;
            wallet.pay(&sale.request).await.context(name)?;
            let pending = wallet.run_pending().await?.pending;
            let sheet = self.world.sheet().await?;
            if !pending.is_empty() && !sheet.totals.unrevealed_melts.is_zero() {
                let count = pending.len();
                let (currency, lost) = (self.world.currency, sheet.totals.unrevealed_melts);
                let summary = format!(
                    "{currency}:{lost} are between old and fresh coins; carol's wallet can finish at any time"
                );
                return Ok(((), StepSummary { count, summary }));
            }
        }
        bail!("no payment needed change")
    }

    /// The balance sheet once no money is in transit.
    async fn settled_sheet(&self) -> anyhow::Result<BalanceSheet> {
        wirewatch::run_until_idle(&self.world.app().core).await?;
        transfer::run_until_idle(&self.world.app().core).await?;
        self.world.sheet().await
    }
}

/// The number of coins from a withdrawal; all must be of the requested cipher.
fn coins_of(wallet: &Wallet, id: OpId, cipher: CipherChoice) -> anyhow::Result<usize> {
    let coins: Vec<_> = wallet
        .coins()
        .into_iter()
        .filter(|coin| matches!(coin.source, CoinSource::Withdrawal { operation, .. } if operation == id))
        .collect();
    ensure!(!coins.is_empty(), "no coins came");
    let is_cs = cipher == CipherChoice::Cs;
    ensure!(coins.iter().all(|coin| coin.cs.is_some() == is_cs), "coins of another cipher came");
    Ok(coins.len())
}

/// Refreshes everything that is due. Returns the number of fresh coins.
pub(super) async fn make_change(person: &Person) -> anyhow::Result<usize> {
    let fresh = || -> BTreeSet<_> {
        let coins = person.wallet.coins();
        let is_change = |coin: &&batzen_wallet::Coin| {
            coin.status == CoinStatus::Fresh && matches!(coin.source, CoinSource::Refresh { .. })
        };
        coins.iter().filter(is_change).map(|coin| coin.coin_pub).collect()
    };
    let before = fresh();
    let outcome = person.wallet.run_pending().await.context(person.name)?;
    ensure!(outcome.pending.is_empty(), "{}: change is not finished: {:?}", person.name, outcome.pending);
    Ok(fresh().difference(&before).count())
}

/// A network that breaks on every reveal.
struct WithoutReveals(HttpTransport);

impl Transport for WithoutReveals {
    fn send<'a>(&'a self, request: &'a HttpRequest) -> ResponseFuture<'a> {
        if request.url.ends_with("/reveal") {
            let error =
                TransportError { url: request.url.clone(), reason: "the connection broke".to_owned() };
            return Box::pin(async move { Err::<HttpResponse, _>(error) });
        }
        self.0.send(request)
    }
}
