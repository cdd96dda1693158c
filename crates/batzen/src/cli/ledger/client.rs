//! `batzen ledger client` and `repl`: send requests to a ledger and show the answers.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use batzen_cli_support::services;
use batzen_ledger::{CreateResult, Ledger, LedgerError, in_parts};
use batzen_ledger_service::net::json::{AccountJson, BalanceJson, EventJson, ResultJson, TransferJson};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::grammar::{self, OPERATIONS, Request};

/// The default ledger of `client` and `repl`.
const DEFAULT_LEDGER: &str = "tcp://127.0.0.1:3001";

/// The ledger to use.
#[derive(Args)]
pub(super) struct Target {
    /// The ledger: tcp://HOST:PORT, unix:///PATH or tigerbeetle://ADDRESS,ADDRESS
    #[arg(long, value_name = "URL", default_value = DEFAULT_LEDGER)]
    ledger: String,
    /// Print JSON, one value per line
    #[arg(long)]
    json: bool,
}

/// Options of `ledger client`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen ledger client create-accounts id=1 ledger=700 code=10, id=2 ledger=700 code=10 flags=history
  batzen ledger client create-transfers id=1 debit_account_id=1 credit_account_id=2 amount=10 ledger=700 code=1
  batzen ledger client lookup-accounts 1 2 --json
  batzen ledger client create-transfers - <transfers.ndjson
  batzen ledger client get-change-events after=0 limit=10

Exit code 1 if the ledger refuses an event; `exists` is success.")]
pub(super) struct ClientArgs {
    #[command(flatten)]
    target: Target,
    /// create-accounts, create-transfers, lookup-accounts, lookup-transfers, get-account-transfers,
    /// get-account-balances, query-accounts, query-transfers or get-change-events
    #[arg(value_name = "OPERATION")]
    operation: String,
    /// Words FIELD=VALUE, where a comma ends an event; ids; or - for JSON or NDJSON from standard input
    #[arg(value_name = "WORD", trailing_var_arg = true)]
    words: Vec<String>,
}

/// Options of `ledger repl`.
#[derive(Args)]
pub(super) struct ReplArgs {
    #[command(flatten)]
    target: Target,
}

async fn connect(url: &str) -> anyhow::Result<Arc<dyn Ledger>> {
    batzen_ledger_service::net::connect(url).await.with_context(|| url.to_owned())
}

/// Sends one request.
pub(super) fn run(mut args: ClientArgs) -> anyhow::Result<ExitCode> {
    // Options may also follow the words.
    if let Some(place) = args.words.iter().position(|word| word == "--json") {
        args.words.remove(place);
        args.target.json = true;
    }
    let request = if args.words == ["-"] {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
        grammar::parse_json(&args.operation, &text)
    } else {
        grammar::parse(&args.operation, &args.words)
    };
    let request = match request {
        Ok(request) => request,
        Err(mistake) => {
            eprintln!("batzen: {mistake}");
            return Ok(ExitCode::from(2));
        }
    };
    services::block_on(async {
        let ledger = connect(&args.target.ledger).await?;
        let shown = ask(ledger.as_ref(), request).await?;
        shown.print(args.target.json)?;
        Ok(if shown.is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Reads requests line by line until the end of input.
pub(super) fn repl(args: &ReplArgs) -> anyhow::Result<ExitCode> {
    let runtime = services::runtime().context("cannot start the runtime")?;
    let ledger = runtime.block_on(connect(&args.target.ledger))?;
    let stdin = std::io::stdin();
    let is_interactive = stdin.is_terminal();
    if is_interactive {
        eprintln!("connected to {}; `help` lists the operations, `exit` ends", args.target.ledger);
    }
    let mut line = String::new();
    loop {
        if is_interactive {
            eprint!("> ");
            std::io::stderr().flush().context("standard error")?;
        }
        line.clear();
        if stdin.lock().read_line(&mut line).context("standard input")? == 0 {
            break;
        }
        let words: Vec<String> =
            line.trim().trim_end_matches(';').split_whitespace().map(str::to_owned).collect();
        let Some((operation, words)) = words.split_first() else { continue };
        match operation.as_str() {
            "exit" | "quit" => break,
            "help" => {
                for (name, takes) in OPERATIONS {
                    eprintln!("{name} {takes}");
                }
                continue;
            }
            comment if comment.starts_with('#') => continue,
            _ => {}
        }
        match grammar::parse(operation, words) {
            Ok(request) => match runtime.block_on(ask(ledger.as_ref(), request)) {
                Ok(shown) => shown.print(args.target.json)?,
                Err(error) => eprintln!("{error}"),
            },
            Err(mistake) => eprintln!("{mistake}"),
        }
    }
    drop(ledger);
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// An answer, formatted for output.
struct Shown {
    records: Vec<Value>,
    is_success: bool,
}

impl Shown {
    fn of<R, J: Serialize + for<'a> From<&'a R>>(records: &[R]) -> Self {
        let value = |record| serde_json::to_value(J::from(record)).expect("strings and numbers only");
        Self { records: records.iter().map(value).collect(), is_success: true }
    }

    fn results<S>(results: &[CreateResult<S>], stands: impl Fn(&S) -> bool) -> Self
    where
        for<'a> ResultJson: From<&'a CreateResult<S>>,
    {
        let is_success = results.iter().all(|result| stands(&result.status));
        Self { is_success, ..Self::of::<_, ResultJson>(results) }
    }

    fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        for record in &self.records {
            if json {
                writeln!(out, "{record}")?;
            } else {
                writeln!(out, "{}", words(record, ""))?;
            }
        }
        Ok(out.flush()?)
    }
}

/// A record as words of the grammar; zero and empty fields are omitted.
fn words(record: &Value, prefix: &str) -> String {
    let Value::Object(members) = record else { return record.to_string() };
    let mut out = Vec::new();
    for (name, value) in members {
        let value = match value {
            Value::String(text) if text == "0" => continue,
            Value::String(text) => text.clone(),
            Value::Number(number) if number.as_u64() == Some(0) => continue,
            Value::Array(names) if names.is_empty() => continue,
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("|"),
            Value::Object(_) => {
                out.push(words(value, &format!("{name}.")));
                continue;
            }
            other => other.to_string(),
        };
        out.push(format!("{prefix}{name}={value}"));
    }
    out.join(" ")
}

async fn ask(ledger: &dyn Ledger, request: Request) -> Result<Shown, LedgerError> {
    Ok(match request {
        Request::CreateAccounts(events) => {
            Shown::results(&ledger.create_accounts(events).await?, |status| status.stands())
        }
        Request::CreateTransfers(events) => {
            Shown::results(&ledger.create_transfers(events).await?, |status| status.stands())
        }
        Request::LookupAccounts(ids) => Shown::of::<_, AccountJson>(&ledger.lookup_accounts(ids).await?),
        Request::LookupTransfers(ids) => Shown::of::<_, TransferJson>(&ledger.lookup_transfers(ids).await?),
        Request::AccountTransfers(filter) => Shown::of::<_, TransferJson>(
            &in_parts(filter, |filter| ledger.get_account_transfers(filter)).await?,
        ),
        Request::AccountBalances(filter) => Shown::of::<_, BalanceJson>(
            &in_parts(filter, |filter| ledger.get_account_balances(filter)).await?,
        ),
        Request::QueryAccounts(filter) => {
            Shown::of::<_, AccountJson>(&in_parts(filter, |filter| ledger.query_accounts(filter)).await?)
        }
        Request::QueryTransfers(filter) => {
            Shown::of::<_, TransferJson>(&in_parts(filter, |filter| ledger.query_transfers(filter)).await?)
        }
        Request::Events(filter) => Shown::of::<_, EventJson>(&ledger.get_change_events(filter).await?),
    })
}
