//! Runs seeds: `make simulate SEEDS=1000`, or a single one: `make simulate SEED=7`.

mod privacy_command;

use std::process::ExitCode;
use std::time::Instant;

use batzen_simulation::{Bug, Ending, Marks, run};
use clap::{Parser, Subcommand};

/// Runs the whole system in one thread, one seed at a time.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Number of seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this one.
    #[arg(long)]
    seed: Option<u64>,
    /// Show every event.
    #[arg(short, long)]
    verbose: bool,
    /// Plant a bug.
    #[arg(long, value_parser = bug)]
    bug: Option<Bug>,
    /// Continue after a failing seed.
    #[arg(long)]
    keep_going: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Play the operator of an exchange: link payments to withdrawals in simulated towns
    Privacy(privacy_command::PrivacyArgs),
}

fn bug(name: &str) -> Result<Bug, String> {
    let names: Vec<String> = Bug::ALL.into_iter().map(Bug::name).collect();
    Bug::from_name(name).ok_or_else(|| format!("one of {}", names.join(", ")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Privacy(arguments)) = &arguments.command {
        return privacy_command::run(arguments);
    }
    // A failed assertion is reported with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let (from, count) = arguments.seed.map_or((arguments.from, arguments.seeds), |seed| (seed, 1));
    let begun = Instant::now();
    let (mut marks, mut customer_hours, mut events, mut stopped, mut failed) =
        (Marks::default(), 0, 0, 0_u64, 0_u64);
    let mut done = 0;
    for seed in from..from.saturating_add(count) {
        let report = run(seed, arguments.bug, arguments.verbose);
        marks.add(&report.marks);
        customer_hours += report.customer_hours;
        events += report.trace.1;
        done += 1;
        match &report.ending {
            Ending::Clean => {}
            Ending::Stopped(what) => {
                stopped += 1;
                if arguments.seed.is_some() {
                    println!("stopped, as expected: {what}");
                }
            }
            Ending::Failed(what) => {
                failed += 1;
                println!("seed {seed} failed: {what}");
                let plant = arguments.bug.map_or_else(String::new, |bug| format!(" BUG={}", bug.name()));
                println!("  again, with every event: make simulate SEED={seed}{plant}");
                if !arguments.keep_going {
                    break;
                }
            }
        }
        if arguments.seed.is_some() {
            println!("seed {seed}: trace {:016x} of {} events", report.trace.0, report.trace.1);
        }
        if done % 1000 == 0 {
            println!("{done} seeds, {:.0} s", begun.elapsed().as_secs_f64());
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{done} seeds in {seconds:.1} s: {:.1} seeds/s, {:.0} customers' hours a minute, {:.0} events/s",
        done as f64 / seconds,
        customer_hours as f64 / seconds * 60.0,
        events as f64 / seconds
    );
    println!("{failed} failed; {stopped} stopped at a misdirected write");
    if arguments.seed.is_none() {
        for (mark, count) in marks.iter() {
            println!("  {count:>9}  {mark}");
        }
        let missing = marks.missing(done);
        if !missing.is_empty() {
            println!("not met: {}", missing.join(", "));
            if arguments.bug.is_none() && done >= 500 && failed == 0 {
                return ExitCode::FAILURE;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
