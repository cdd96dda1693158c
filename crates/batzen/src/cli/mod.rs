//! The commands: they parse arguments, call services and libraries, and print results.

mod auditor;
mod bank;
mod config;
mod doctor;
mod examples;
mod exchange;
mod known_options;
mod ledger;
mod liabilities;
mod merchant;
mod metrics;
mod sample;
mod signer;
mod store;
mod switch;
mod tokens;
mod wallet;
mod wire_gateway_client;

use std::process::ExitCode;

use std::ffi::OsString;

use anyhow::Context as _;
use batzen_cli_support::{manual, program};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Subcommand};

pub(crate) use examples::EXAMPLES;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Play a round of digital cash on this machine, and prove that every balance is right
    Demo(DemoArgs),
    /// Run the bank
    Bank(bank::BankArgs),
    /// Run the exchange, its workers, and the offline key tool
    Exchange(exchange::ExchangeArgs),
    /// Keep an exchange's private keys in a separate process
    Signer(signer::SignerArgs),
    /// Run the merchant backend, with which shops get paid
    Merchant(merchant::MerchantArgs),
    /// Audit an exchange: follow it, check its books, receive what merchants show, approve denominations
    Auditor(auditor::AuditorArgs),
    /// Hold and spend coins
    Wallet(wallet::WalletArgs),
    /// Run the interbank switch
    Switch(switch::SwitchArgs),
    /// Run and query a two-phase double-entry ledger
    Ledger(ledger::LedgerArgs),
    /// Check proofs that an exchange hides what it owes
    Liabilities(liabilities::LiabilitiesArgs),
    /// Inspect, verify or repair an embedded store that no process has open
    Store(store::StoreArgs),
    /// Diagnose a live PostgreSQL server, and print the commands that fix it
    Doctor(doctor::DoctorArgs),
    /// Add up the metrics of the processes of a service
    Metrics(metrics::MetricsArgs),
    /// Read and change options of the configuration
    Config(config::ConfigArgs),
    /// Print the completion script for a shell
    Completions(manual::CompletionsArgs),
    /// Write a man page for each command
    Man(manual::ManArgs),
}

/// Runs a command.
///
/// # Errors
/// Any failure, as one line.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(_) => demo(),
        Command::Bank(args) => bank::run(args),
        Command::Exchange(args) => exchange::run(args),
        Command::Signer(args) => signer::run(args),
        Command::Merchant(args) => merchant::run(args),
        Command::Auditor(args) => auditor::run(args),
        Command::Wallet(args) => wallet::run(args),
        Command::Switch(args) => switch::run(args),
        Command::Ledger(args) => ledger::run(args),
        Command::Liabilities(args) => liabilities::run(&args),
        Command::Store(args) => store::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Metrics(args) => metrics::run(args),
        Command::Config(args) => config::run(args),
        Command::Completions(args) => Ok(manual::completions(&args, crate::command())),
        Command::Man(args) => manual::man(&args, crate::command()),
    }
}

/// The program of the laboratory, which is installed with the product.
const LABORATORY: &str = "batzen-lab";

/// Options of `batzen-lab demo`.
#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  batzen demo --once\n  batzen demo --help    its options, which are those of batzen-lab demo"
)]
pub(crate) struct DemoArgs {
    /// Options of batzen-lab demo
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    _options: Vec<OsString>,
}

/// Becomes the laboratory's program, with the same arguments.
fn demo() -> anyhow::Result<ExitCode> {
    let error = program::exec(LABORATORY, std::env::args_os().skip(1));
    Err(error).with_context(|| {
        format!(
            "start {LABORATORY}, which plays the demo: it belongs beside this program or on the search path"
        )
    })
}

/// The commands that only the laboratory has, first those below a command that this program has, too.
const IN_THE_LABORATORY: [&[&str]; 7] = [
    &["ledger", "bench"],
    &["switch", "demo"],
    &["switch", "fsps"],
    &["switch", "bench"],
    &["bench"],
    &["plan"],
    &["shop"],
];

/// The command of the laboratory for which somebody asked this program, if that is what is wrong with the arguments.
pub(crate) fn in_the_laboratory(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let found = IN_THE_LABORATORY.iter().find(|words| {
        words.last() == Some(&word.as_str()) && words.iter().all(|word| arguments.iter().any(|a| a == word))
    });
    found.map(|words| words.join(" "))
}
