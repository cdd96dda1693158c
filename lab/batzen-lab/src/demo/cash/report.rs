//! The report of a round: lines and a table for people, one JSON value for programs.

use std::future::Future;
use std::io::Write;
use std::time::{Duration, Instant};

use batzen_cli_support::progress;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;

use super::identify::{self, THRESHOLD};
use super::shops::SANDBOX_TOKEN;
use super::world::{SIGNUP_BONUS, World};
use batzen_exchange::reads::sheet::BalanceSheet;

/// The result of a successful step.
pub(crate) struct StepSummary {
    /// The number of items in the step.
    pub(crate) count: usize,
    /// One line for people.
    pub(crate) summary: String,
}

/// The result of a step, for programs.
#[derive(Serialize)]
struct Step {
    name: &'static str,
    ok: bool,
    count: usize,
    milliseconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The report of a round.
pub(super) struct Report {
    json: bool,
    is_interactive: bool,
    steps: Vec<Step>,
}

impl Report {
    /// A report for people, or for programs.
    pub(crate) fn new(json: bool) -> Self {
        Self { json, is_interactive: !json && progress::is_interactive(), steps: Vec::new() }
    }

    /// Returns whether the output is a terminal.
    pub(crate) fn is_interactive(&self) -> bool {
        self.is_interactive
    }

    /// Returns whether all steps so far succeeded.
    pub(crate) fn is_good(&self) -> bool {
        self.steps.iter().all(|step| step.ok)
    }

    /// Runs a step: shows its name, waits, prints its result.
    ///
    /// # Errors
    /// The step failed; its error has been printed.
    pub(crate) async fn step<T>(
        &mut self,
        name: &'static str,
        doing: &str,
        work: impl Future<Output = anyhow::Result<(T, StepSummary)>>,
    ) -> Result<T, Failed> {
        // The first step has its own progress bar, because keys are created.
        let spins = self.is_interactive && !self.steps.is_empty();
        let spinner = spins.then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg} …")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let spinner = ProgressBar::new_spinner().with_style(style).with_message(doing.to_owned());
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        let begun = Instant::now();
        let outcome = work.await;
        let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        match outcome {
            Ok((result, done)) => {
                self.print_line(&format!("{name:<14}{milliseconds:>7} ms  {}", done.summary));
                self.steps.push(Step { name, ok: true, count: done.count, milliseconds, error: None });
                Ok(result)
            }
            Err(error) => {
                let error = format!("{error:#}");
                self.print_error(&format!("{name}: {error}"));
                self.steps.push(Step { name, ok: false, count: 0, milliseconds, error: Some(error) });
                Err(Failed)
            }
        }
    }

    /// Prints a line for people. A closed standard output must not stop the round before the books are
    /// closed.
    fn print_line(&self, text: &str) {
        if !self.json {
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    }

    pub(crate) fn print_error(&self, text: &str) {
        eprintln!("batzen: {text}");
    }

    /// Prints the results: all of them for programs, the balance sheet for people.
    pub(crate) fn results(&self, sheet: Option<&BalanceSheet>, world: &World) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            let results = json!({
                "steps": self.steps,
                "balance": sheet.map(BalanceSheet::json),
                "bank": world.bank.base_url,
                "exchange": world.exchange.base_url(),
                "merchant": world.shops.backend_url,
                "shop": world.shops.shop.url(),
                "sandbox_token": SANDBOX_TOKEN,
                "dashboards": dashboards(world),
                "data": world.dir,
                "database": world.database,
            });
            writeln!(out, "{results:#}")?;
        } else if let Some(sheet) = sheet {
            writeln!(out, "\nThe balance sheet, all runs in {}:\n\n{}", world.dir.display(), sheet.text())?;
        }
        out.flush()?;
        Ok(())
    }

    /// Prints what to try next.
    pub(crate) fn print_next_steps(&self, world: &World) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        let program = quoted(&batzen_cli_support::program::sibling("batzen").to_string_lossy());
        let wallet = quoted(&world.wallet_file("zoe").to_string_lossy());
        let (bank, exchange, currency) = (&world.bank.base_url, world.exchange.base_url(), world.currency);
        let [exchange_page, bank_page] = dashboards(world);
        let (shop, merchant) = (world.shops.shop.url(), &world.shops.backend_url);
        let database = world.database.as_ref();
        let database = database.map_or_else(String::new, |url| format!("  psql {}\n", quoted(url)));
        let mut out = std::io::stdout().lock();
        let clerk = identify::token_file(&world.dir).display().to_string();
        let other_ports = world.other_ports();
        // A function, not an alias: shells expand aliases only when a person types.
        writeln!(
            out,
            "{other_ports}Bank {bank} and exchange {exchange} keep serving until Ctrl-C. Open them in a browser:

  {shop}
  {bank}
  {exchange_page}
  {bank_page}
{database}
The bank gives every new customer {currency}:{SIGNUP_BONUS} of play money; nobody can overdraw an account. In another terminal:

  zoe() {{ {program} wallet --wallet {wallet} \"$@\"; }}
  zoe withdraw --exchange {exchange} --amount {currency}:20 --bank {bank} --user zoe --password zoe --yes
  zoe balance
  zoe deposit {currency}:7.5 'payto://x-taler-bank/localhost/zoe?receiver-name=zoe' --yes
  zoe transactions
  {program} bank gateway --url {bank}taler-wire-gateway/exchange/ outgoing

Whoever withdraws {currency}:{THRESHOLD} or more within a minute must say who she is. The clerk decides at
{exchange}kyc-officer with the token in {clerk}

The bookshop {shop} sells articles: pay the link below its QR code with zoe pay 'LINK'. It is paid through the merchant
backend {merchant}, whose instance default with the token {SANDBOX_TOKEN} is yours to play with.
"
        )?;
        out.flush()?;
        Ok(())
    }

    /// Prints the balance sheet after the services were used, and what happens to the wallets.
    pub(crate) fn last_results(
        &self,
        sheet: Result<&BalanceSheet, &anyhow::Error>,
        world: &World,
        payments: u64,
        data: DataAtEnd,
    ) -> anyhow::Result<()> {
        if let Err(error) = sheet {
            self.print_error(&format!("there is no final balance sheet: {error:#}"));
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            let results = json!({
                "final_balance": sheet.ok().map(BalanceSheet::json),
                "payments_of_load": payments,
                "data": world.dir,
                "data_kept": matches!(data, DataAtEnd::Kept | DataAtEnd::KeptForWallets),
            });
            writeln!(out, "{results:#}")?;
            return Ok(out.flush()?);
        }
        if payments > 0 {
            writeln!(out, "\nThe load made {payments} payments.")?;
        }
        if let Ok(sheet) = sheet {
            writeln!(out, "\nThe final balance sheet:\n\n{}", sheet.text())?;
        }
        let dir = quoted(&world.dir.to_string_lossy());
        match data {
            DataAtEnd::Kept => writeln!(out, "Everything stays in {dir}; the same command continues.")?,
            DataAtEnd::KeptForWallets => writeln!(
                out,
                "Other wallets have coins of this exchange, so its keys and books stay. Continue with:

  batzen demo --data {dir}

Without this directory the coins are worthless. Remove it when nobody needs them: rm -r {dir}"
            )?,
            DataAtEnd::RemovedWithDatabase => writeln!(
                out,
                "Other wallets have coins of this exchange. They are worthless now: its books were in a temporary \
                 database. Use --data DIR to keep everything."
            )?,
            DataAtEnd::Removed => writeln!(
                out,
                "No other wallet has coins of this exchange, so {dir} is removed. Use --data DIR to keep everything."
            )?,
        }
        Ok(out.flush()?)
    }
}

/// The end of a demo's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataAtEnd {
    /// The user named it.
    Kept,
    /// It is temporary, but other wallets have coins of its exchange.
    KeptForWallets,
    /// It is temporary, and so is the database with the books, although other wallets have coins.
    RemovedWithDatabase,
    /// It is temporary, and nobody needs it.
    Removed,
}

/// The dashboards of exchange and bank.
fn dashboards(world: &World) -> [String; 2] {
    [world.exchange.base_url(), &world.bank.base_url].map(|base| format!("{base}dashboard"))
}

/// For a shell, inside double quotes or bare.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// A step failed; the report has printed the reason.
#[derive(Debug)]
pub(super) struct Failed;
