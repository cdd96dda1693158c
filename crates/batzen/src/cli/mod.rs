//! The commands: they parse arguments, call services and libraries, and print results.

mod auditor;
mod bank;
mod bench;
mod config;
mod doctor;
pub mod examples;
mod exchange;
mod known_options;
mod ledger;
mod liabilities;
mod manual;
mod merchant;
mod sample;
mod shop;
mod signer;
mod store;
mod switch;
mod wallet;
mod wire_gateway_client;

use std::process::ExitCode;

use batzen_lab::demo::cash as demo;
use clap::Subcommand;

#[derive(Subcommand)]
pub enum Command {
    /// Play a round of digital cash on this machine, and prove that every balance is right
    Demo(demo::DemoArgs),
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
    /// Run a small bookshop, the example of a shop that gets paid through a merchant backend
    Shop(shop::ShopArgs),
    /// Hold and spend coins
    Wallet(wallet::WalletArgs),
    /// Run the interbank switch
    Switch(switch::SwitchArgs),
    /// Run, query and measure a two-phase double-entry ledger
    Ledger(ledger::LedgerArgs),
    /// Check proofs that an exchange hides what it owes
    Liabilities(liabilities::LiabilitiesArgs),
    /// Inspect, verify or repair an embedded store that no process has open
    Store(store::StoreArgs),
    /// Diagnose a live PostgreSQL server, and print the commands that fix it
    Doctor(doctor::DoctorArgs),
    /// Read and change options of the configuration
    Config(config::ConfigArgs),
    /// Measure: throughput, latency, efficiency
    Bench(bench::BenchArgs),
    /// Plan cores, machines, memory, disk and network for a wanted load
    Plan(batzen_lab::bench::plan::PlanArgs),
    /// Print the completion script for a shell
    Completions(manual::CompletionsArgs),
    /// Write a man page for each command
    Man(manual::ManArgs),
}

/// Runs a command.
///
/// # Errors
/// Any failure, as one line.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(args),
        Command::Bank(args) => bank::run(args),
        Command::Exchange(args) => exchange::run(args),
        Command::Signer(args) => signer::run(args),
        Command::Merchant(args) => merchant::run(args),
        Command::Auditor(args) => auditor::run(args),
        Command::Shop(args) => shop::run(args),
        Command::Wallet(args) => wallet::run(args),
        Command::Switch(args) => switch::run(args),
        Command::Ledger(args) => ledger::run(args),
        Command::Liabilities(args) => liabilities::run(&args),
        Command::Store(args) => store::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Plan(args) => bench::run_plan(&args),
        Command::Config(args) => config::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => Ok(manual::completions(&args)),
        Command::Man(args) => manual::man(&args),
    }
}
