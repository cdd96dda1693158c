//! `privacy`: plays the privacy game and prints its table.

use std::io::IsTerminal;
use std::process::ExitCode;

use batzen_protocol::Duration;
use batzen_simulation::privacy::report::{Games, Report, play};
use batzen_simulation::privacy::town::TownOptions;
use batzen_wallet::core::discretion::Discretion;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

/// Options of the game.
#[derive(Args)]
pub(crate) struct PrivacyArgs {
    /// People in each town, each with a wallet
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=5_000))]
    people: u32,
    /// Simulated days
    #[arg(long, default_value_t = 28, value_parser = clap::value_parser!(u32).range(1..=360))]
    days: u32,
    /// Towns that are attacked; more of them make the intervals narrower
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    towns: u32,
    /// Seed of the first town
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Towns whose truth the operator knows, to learn from
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    training: u32,
    /// Wallets withdraw only common sums
    #[arg(long)]
    round_sums: bool,
    /// Wallets hold an assortment of coins, and pay without change if they can
    #[arg(long)]
    assortment: bool,
    /// Wallets wait up to this many hours before they refresh change
    #[arg(long, default_value_t = 0, value_name = "HOURS", value_parser = clap::value_parser!(u32).range(0..=168))]
    refresh_delay: u32,
    /// Everybody withdraws ahead, when the wallet is nearly empty, instead of 55 in 100 people
    #[arg(long)]
    plans_ahead: bool,
    /// Play the same towns first with wallets without these options
    #[arg(long)]
    compare: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Plays.
pub(crate) fn run(args: &PrivacyArgs) -> ExitCode {
    let chosen = Discretion {
        round_sums: args.round_sums,
        assortment: args.assortment,
        refresh_delay: Duration::from_secs(u64::from(args.refresh_delay) * 3_600),
    };
    let plain = Discretion { round_sums: false, assortment: false, refresh_delay: Duration::ZERO };
    let wallets = if args.compare { vec![plain, chosen] } else { vec![chosen] };
    let total = u64::from(args.towns + args.training) * wallets.len() as u64;
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message("towns");
    bar.tick();
    let mut reports = Vec::new();
    for discretion in wallets {
        let games = Games {
            town: TownOptions {
                people: args.people as usize,
                days: u64::from(args.days),
                discretion,
                plans_ahead: args.plans_ahead,
                leak: None,
            },
            towns: u64::from(args.towns),
            from: args.from,
            training: u64::from(args.training),
        };
        match play(&games, &mut || bar.inc(1)) {
            Ok(report) => reports.push(report),
            Err(stop) => {
                bar.finish_and_clear();
                eprintln!("the game failed: {stop:?}");
                return ExitCode::FAILURE;
            }
        }
    }
    bar.finish_and_clear();
    if args.json {
        let text = serde_json::to_string_pretty(&reports).expect("reports have a JSON form");
        println!("{text}");
    } else {
        for report in &reports {
            println!("{report}");
        }
        if let [before, after] = reports.as_slice() {
            println!("{}", comparison(before, after));
        }
    }
    ExitCode::SUCCESS
}

fn comparison(before: &Report, after: &Report) -> String {
    let (before, after) = (before.combined(), after.combined());
    format!(
        "combined advantage: {} before, {} after: {:.2} of it is left ({:.2} for accounts)",
        before.advantage,
        after.advantage,
        after.advantage.mean / before.advantage.mean,
        after.account_advantage.mean / before.account_advantage.mean
    )
}
