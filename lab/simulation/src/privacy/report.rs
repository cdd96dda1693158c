//! Plays the game in several towns, and reports.

use std::fmt;

use batzen_wallet::core::discretion::Discretion;
use serde::Serialize;

use super::game::{Attack, Board, Experience};
use super::identifiers::Similarity;
use super::score::{Mean, Score};
use super::town::{Price, TownOptions};
use crate::host::Step;

/// The first seed of the towns that the operator learns from. Their truth is known to it.
pub const TRAINING_SEED: u64 = 1 << 32;

/// The games to play.
#[derive(Clone, Copy, Debug)]
pub struct Games {
    /// The towns. Their seeds determine everything else.
    pub town: TownOptions,
    /// Number of towns that are attacked.
    pub towns: u64,
    /// The seed of the first one.
    pub from: u64,
    /// Number of towns that the operator learns from.
    pub training: u64,
}

/// A mean with half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval.
    pub margin: f64,
}

impl Figure {
    fn of(scores: &[Score], value: impl Fn(&Score) -> f64) -> Self {
        let Mean { mean, margin } = Mean::of(&scores.iter().map(value).collect::<Vec<_>>());
        Self { mean, margin }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tiny negative values are rounded to a plain zero.
        let mean = if self.mean.abs() < 0.000_05 { 0.0 } else { self.mean };
        write!(f, "{:.1} ± {:.1} %", mean * 100.0, self.margin * 100.0)
    }
}

/// The result of an attack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Result {
    /// The attack.
    pub attack: &'static str,
    /// Frequency with which the guessed withdrawal is the true one.
    pub success: Figure,
    /// Frequency with which a random earlier withdrawal is the true one.
    pub guessing: Figure,
    /// The advantage over guessing.
    pub advantage: Figure,
    /// Number of equally likely withdrawals that would leave the operator as uncertain.
    pub anonymity_set: Figure,
    /// The advantage in guessing the bank account.
    pub account_advantage: Figure,
    /// Frequency with which the guessed account is the true one.
    pub account_success: Figure,
    /// Number of equally likely accounts that would leave the operator as uncertain.
    pub account_anonymity_set: Figure,
}

/// The statistical test of blindness.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Blindness {
    /// Coins that were compared with all blinded values.
    pub coins: u64,
    /// Number of times that the most similar blinded value was the coin's own.
    pub hits: u64,
    /// Number of times expected by chance.
    pub expected: f64,
    /// The difference in standard deviations.
    pub deviation: f64,
    /// The largest deviation that still counts as chance.
    pub bound: f64,
}

/// The costs of the wallets' behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// Payments in all towns.
    pub payments: u64,
    /// Withdrawals for each hundred payments.
    pub withdrawals: f64,
    /// Coins withdrawn for each payment.
    pub coins_withdrawn: f64,
    /// Coins paid for each payment.
    pub coins_paid: f64,
    /// Melts for each payment.
    pub melts: f64,
    /// Coins from melts for each payment.
    pub coins_fresh: f64,
    /// Share of the payments that waited for a withdrawal or for change.
    pub waited: f64,
    /// Share of the payments for which change was refreshed before its time.
    pub hastened: f64,
    /// Payments that were given up.
    pub given_up: u64,
    /// The money in an average wallet at the end, in cents.
    pub idle_cents: f64,
}

/// The report on one kind of wallet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The wallets' options.
    pub wallet: Discretion,
    /// Whether everybody withdraws ahead.
    pub plans_ahead: bool,
    /// People in each town.
    pub people: usize,
    /// Days of each town.
    pub days: u64,
    /// Seed of the first town.
    pub from: u64,
    /// Number of towns.
    pub towns: u64,
    /// Number of towns that the operator learned from.
    pub training: u64,
    /// The attacks.
    pub attacks: Vec<Result>,
    /// The test of blindness.
    pub blindness: Blindness,
    /// The costs.
    pub costs: Costs,
}

impl Report {
    /// The result of the combined attack.
    ///
    /// # Panics
    /// Never: it is always made.
    #[must_use]
    pub fn combined(&self) -> &Result {
        self.attacks.last().expect("the combined attack is the last one")
    }
}

/// Plays. `progress` is called after each town.
///
/// # Errors
/// When a wallet or the exchange fails, which is a bug.
pub fn play(games: &Games, progress: &mut dyn FnMut()) -> Step<Report> {
    let mut towns = |from: u64, count: u64| -> Step<Vec<Board>> {
        (from..from + count)
            .map(|seed| {
                let board = Board::new(seed, games.town);
                progress();
                board
            })
            .collect()
    };
    let experience = Experience::learn(&towns(TRAINING_SEED, games.training)?);
    let boards = towns(games.from, games.towns)?;
    let mut attacks = Vec::new();
    for attack in Attack::ALL {
        let scores: Vec<Score> = boards.iter().map(|board| experience.attack(board, attack)).collect();
        attacks.push(Result {
            attack: attack.name(),
            success: Figure::of(&scores, |score| score.success),
            guessing: Figure::of(&scores, |score| score.guessing),
            advantage: Figure::of(&scores, Score::advantage),
            anonymity_set: Figure::of(&scores, Score::anonymity_set),
            account_advantage: Figure::of(&scores, Score::account_advantage),
            account_success: Figure::of(&scores, |score| score.account_success),
            account_anonymity_set: Figure::of(&scores, Score::account_anonymity_set),
        });
    }
    let (mut similarity, mut price) = (Similarity::default(), Price::default());
    for board in &boards {
        similarity.add(&board.similarity);
        price.add(&board.price);
    }
    let payments = price.payments.max(1) as f64;
    let per_payment = |count: u64| count as f64 / payments;
    Ok(Report {
        wallet: games.town.discretion,
        plans_ahead: games.town.plans_ahead,
        people: games.town.people,
        days: games.town.days,
        from: games.from,
        towns: games.towns,
        training: games.training,
        attacks,
        blindness: Blindness {
            coins: similarity.coins,
            hits: similarity.hits,
            expected: similarity.expected,
            deviation: similarity.deviation(),
            bound: Similarity::DEVIATION_MAX,
        },
        costs: Costs {
            payments: price.payments,
            withdrawals: per_payment(price.withdrawals) * 100.0,
            coins_withdrawn: per_payment(price.withdrawn),
            coins_paid: per_payment(price.deposited),
            melts: per_payment(price.melted),
            coins_fresh: per_payment(price.fresh),
            waited: per_payment(price.waited),
            hastened: per_payment(price.hastened),
            given_up: price.given_up,
            idle_cents: price.idle_cents as f64 / (games.town.people as u64 * games.towns).max(1) as f64,
        },
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Discretion { round_sums, assortment, refresh_delay } = self.wallet;
        let yes = |on: bool| if on { "yes" } else { "no" };
        let delay = refresh_delay.as_micros() / 3_600_000_000;
        writeln!(
            f,
            "wallets: round sums {}, assortment {}, refresh delay up to {delay} h",
            yes(round_sums),
            yes(assortment)
        )?;
        writeln!(
            f,
            "{} towns of {} people for {} days, {} payments\n",
            self.towns, self.people, self.days, self.costs.payments
        )?;
        writeln!(
            f,
            "{:<14}  {:>15}  {:>8}  {:>8}  {:>8}  {:>15}  {:>8}",
            "attack", "advantage", "right", "guessing", "set", "account adv.", "set"
        )?;
        for result in &self.attacks {
            writeln!(
                f,
                "{:<14}  {:>15}  {:>6.2} %  {:>6.2} %  {:>8.1}  {:>15}  {:>8.1}",
                result.attack,
                result.advantage.to_string(),
                result.success.mean * 100.0,
                result.guessing.mean * 100.0,
                result.anonymity_set.mean,
                result.account_advantage.to_string(),
                result.account_anonymity_set.mean
            )?;
        }
        let Blindness { coins, hits, expected, deviation, bound } = self.blindness;
        writeln!(
            f,
            "\nblindness: {hits} of {coins} most similar values are the right ones, {expected:.1} expected by chance \
             ({deviation:+.1} standard deviations, at most {bound})"
        )?;
        let costs = &self.costs;
        writeln!(
            f,
            "costs per payment: {:.2} coins withdrawn, {:.2} coins paid, {:.2} melts into {:.2} coins; {:.1} withdrawals \
             per 100 payments",
            costs.coins_withdrawn, costs.coins_paid, costs.melts, costs.coins_fresh, costs.withdrawals
        )?;
        writeln!(
            f,
            "{:.1} % of the payments waited for coins, {:.1} % hastened change, {} were given up; {:.2} idle in a wallet",
            costs.waited * 100.0,
            costs.hastened * 100.0,
            costs.given_up,
            costs.idle_cents / 100.0
        )
    }
}
