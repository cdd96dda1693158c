//! The commands: they parse arguments, call the laboratory's parts, and print results.

mod bench;
mod examples;
mod inside;
mod participants;
mod shop;

use std::process::ExitCode;

use batzen_cli_support::manual;
use batzen_lab::bench::plan;
use batzen_lab::bench::scenarios;
use batzen_lab::demo;
use batzen_lab::experiment;
use clap::{Args, Subcommand};

pub(crate) use examples::EXAMPLES;
pub(crate) use inside::refuse_targets;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Play a round of digital cash on this machine, and prove that every balance is right
    Demo(demo::cash::DemoArgs),
    /// Show, load and measure an interbank switch
    Switch(SwitchArgs),
    /// Measure a ledger
    Ledger(LedgerArgs),
    /// Run a small bookshop, the example of a shop that gets paid through a merchant backend
    Shop(shop::ShopArgs),
    /// Measure: throughput, latency, efficiency
    Bench(bench::BenchArgs),
    /// Plan cores, machines, memory, disk and network for a wanted load
    Plan(plan::PlanArgs),
    /// Set up a payment system on the hosts of a topology
    Up(experiment::UpArgs),
    /// Install Batzen and what the roles need on the ssh hosts of a topology
    Provision(experiment::ProvisionArgs),
    /// Run a whole experiment: set up, run the steps of the file, check, end, and write the page
    Experiment(experiment::ExperimentArgs),
    /// Repeat an experiment with other values of one parameter, and plot the knee, or the rate of a scenario
    Sweep(experiment::SweepArgs),
    /// Show what runs where
    Status(experiment::StatusArgs),
    /// End everything that `up` started, and keep the result
    Down(experiment::DownArgs),
    /// Add or remove instances of a role while everything runs
    Scale(experiment::ScaleArgs),
    /// Start an instance again with another version's program
    Upgrade(experiment::UpgradeArgs),
    /// Inject failures: kill, stop or slow an instance or its disk, cut a site off, promote the standby, revoke
    /// denominations
    Disturb(experiment::DisturbArgs),
    /// Run a command on a host, or a shell
    Ssh(experiment::SshArgs),
    /// Put load on what is up: start, stop, scale, rate, mix, ramp, show
    Load(experiment::LoadCommand),
    /// Check that no money is lost: end the load, and ask the auditor, the books and the switch
    Check(experiment::CheckArgs),
    /// Show a kept experiment as a page, from its directory or a packed file
    Open(experiment::OpenArgs),
    /// Show the logs of all hosts in the order of time, or the lines of one request
    Logs(experiment::LogsArgs),
    /// Pack a kept experiment into one file to send, without its secrets
    Pack(experiment::PackArgs),
    /// Compare two experiments, or repetitions of them: what differs, and what is better or worse
    Compare(experiment::CompareArgs),
    /// Print what each step of a sweep costs, and what it adds: hosts, money, operations a second, efficiency
    Cost(experiment::CostArgs),
    /// The agent of a host, which `up` starts
    #[command(hide = true)]
    Agent(experiment::AgentArgs),
    /// Print the completion script for a shell
    Completions(manual::CompletionsArgs),
    /// Write a man page for each command
    Man(manual::ManArgs),
}

/// Show, load and measure an interbank switch
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SwitchArgs {
    #[command(subcommand)]
    command: SwitchCommand,
}

#[derive(Subcommand)]
enum SwitchCommand {
    /// Clear transfers between four simulated participants on this machine, and prove that no money is lost
    Demo(demo::switch::DemoArgs),
    /// Play participants of a running switch: send transfers, answer them, and report the results
    Fsps(participants::FspsArgs),
    /// Measure: complete transfers per second, latency of each leg, efficiency
    Bench(scenarios::switch::SwitchArgs),
}

/// Measure a ledger
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct LedgerArgs {
    #[command(subcommand)]
    command: LedgerCommand,
}

#[derive(Subcommand)]
enum LedgerCommand {
    /// Measure a ledger: transfers per second, latency, bytes and CPU time per transfer
    Bench(scenarios::ledger::LedgerArgs),
}

/// Runs a command.
///
/// # Errors
/// Any failure, as one line.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::cash::run(args),
        Command::Switch(args) => match args.command {
            SwitchCommand::Demo(args) => demo::switch::run(&args),
            SwitchCommand::Fsps(args) => participants::run(&args),
            SwitchCommand::Bench(args) => {
                bench::show(&args.run, scenarios::switch::run(&args, &bench::context()?))
            }
        },
        Command::Ledger(LedgerArgs { command: LedgerCommand::Bench(args) }) => {
            batzen_cli_support::services::raise_descriptor_limit();
            bench::show(&args.run, scenarios::ledger::run(&args, &bench::context()?))
        }
        Command::Shop(args) => shop::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Plan(args) => bench::plan(&args),
        Command::Up(args) => {
            let context = bench::context()?;
            experiment::up(&args, &context.commit, &context.interrupted)
        }
        Command::Provision(args) => experiment::provision(&args),
        Command::Experiment(args) => {
            let context = bench::context()?;
            experiment::experiment(&args, &context.commit, &context.interrupted)
        }
        Command::Sweep(args) => {
            let context = bench::context()?;
            experiment::sweep(&args, &context.commit, &context.interrupted)
        }
        Command::Status(args) => experiment::status(&args),
        Command::Down(args) => experiment::down(&args),
        Command::Scale(args) => experiment::scale(&args, &bench::context()?.interrupted),
        Command::Upgrade(args) => experiment::upgrade(&args, &bench::context()?.interrupted),
        Command::Disturb(args) => experiment::disturb(&args, &bench::context()?.interrupted),
        Command::Ssh(args) => experiment::shell(&args),
        Command::Load(args) => experiment::load(&args),
        Command::Check(args) => experiment::check(&args),
        Command::Open(args) => experiment::open(&args, &bench::context()?.interrupted),
        Command::Logs(args) => experiment::logs(&args),
        Command::Pack(args) => experiment::pack(&args),
        Command::Compare(args) => experiment::compare(&args),
        Command::Cost(args) => experiment::cost(&args),
        Command::Agent(args) => experiment::agent(&args),
        Command::Completions(args) => Ok(manual::completions(&args, crate::command())),
        Command::Man(args) => manual::man(&args, crate::command()),
    }
}
