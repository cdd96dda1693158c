//! Plays the game: towns from seeds, attacks, scores.

use std::collections::{HashMap, HashSet};

use batzen_crypto::EddsaPublicKey;

use super::facts::Facts;
use super::features::{Feature, Learner, Surroundings, Weights};
use super::graph::{self, Trust};
use super::identifiers::{self, Similarity};
use super::score::{Score, Scorer};
use super::town::{self, Lived, Price, TownOptions};
use crate::host::{Step, Stop};

/// The attacks, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attack {
    /// Equal bytes in a withdrawal and a payment.
    Identifiers,
    /// One kind of trace.
    Trace(Feature),
    /// The refresh graph.
    Graph,
    /// Everything together.
    Combined,
}

impl Attack {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Identifiers,
        Self::Trace(Feature::Amounts),
        Self::Trace(Feature::Timing),
        Self::Trace(Feature::Denominations),
        Self::Graph,
        Self::Combined,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identifiers => "identifiers",
            Self::Trace(Feature::Amounts) => "amounts",
            Self::Trace(Feature::Timing) => "timing",
            Self::Trace(Feature::Denominations) => "denominations",
            Self::Graph => "refresh graph",
            Self::Combined => "combined",
        }
    }
}

/// A town with what is needed to score guesses.
pub struct Board {
    facts: Facts,
    reserve_of: HashMap<EddsaPublicKey, usize>,
    matches: HashMap<EddsaPublicKey, HashSet<usize>>,
    /// The statistical test of blindness.
    pub similarity: Similarity,
    /// The price of the wallets' behaviour.
    pub price: Price,
}

impl Board {
    /// Lets a town live, and reads the operator's view of it.
    ///
    /// # Errors
    /// When a wallet or the exchange fails, or the view contains a wallet's secret.
    pub fn new(seed: u64, options: TownOptions) -> Step<Self> {
        let Lived { view, truth, price } = town::live(seed, options)?;
        if let Some(table) = view.find_secret(&truth.secrets)? {
            return Err(Stop::wrong(format!("the operator's table {table} has a wallet's secret")));
        }
        let facts = Facts::read(&view)?;
        let index_of: HashMap<EddsaPublicKey, usize> =
            facts.reserves.iter().zip(0..).map(|(reserve, index)| (reserve.reserve_pub, index)).collect();
        let reserve_of: HashMap<EddsaPublicKey, usize> = truth
            .reserve_of_coin
            .iter()
            .filter_map(|(coin_pub, reserve_pub)| Some((*coin_pub, *index_of.get(reserve_pub)?)))
            .collect();
        let matches = identifiers::matches(&view, &facts)?;
        let similarity = identifiers::similarity(&view, &facts, &reserve_of, &truth.withdrawn)?;
        Ok(Self { facts, reserve_of, matches, similarity, price })
    }

    /// The facts that the operator has.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }
}

/// The experience that the operator gained from towns that it simulated itself.
#[derive(Clone, Debug)]
pub struct Experience {
    weights: Vec<(Feature, Weights)>,
    trust: Trust,
    sharpness: Vec<(Attack, f64)>,
}

impl Experience {
    /// Learns from towns of the same kind.
    #[must_use]
    pub fn learn(boards: &[Board]) -> Self {
        let mut weights = Vec::new();
        for feature in Feature::ALL {
            let mut learner = Learner::default();
            for board in boards {
                learner.learn(feature, &board.facts, &board.reserve_of);
            }
            weights.push((feature, learner.weights()));
        }
        let mut experience = Self { weights, trust: Trust::GRAPH, sharpness: Vec::new() };
        let Some(board) = boards.first() else { return experience };
        // One weight after the other, as long as it helps.
        let success = |experience: &Self| {
            let mut scorer = Scorer::new(&board.facts, 1.0);
            experience.guess(board, Attack::Combined, &mut scorer);
            scorer.score().success
        };
        let knobs: [fn(&mut Trust) -> &mut f64; 4] = [
            |trust| &mut trust.features[1],
            |trust| &mut trust.features[0],
            |trust| &mut trust.features[2],
            |trust| &mut trust.selection,
        ];
        let mut best = success(&experience);
        for knob in knobs {
            for value in [0.3, 0.6, 1.0] {
                let mut other = experience.clone();
                *knob(&mut other.trust) = value;
                let reached = success(&other);
                if reached > best {
                    (best, experience) = (reached, other);
                }
            }
        }
        for attack in Attack::ALL {
            let mut scorer = Scorer::learning(&board.facts);
            experience.guess(board, attack, &mut scorer);
            experience.sharpness.push((attack, scorer.sharpness()));
        }
        experience
    }

    fn trace(&self, board: &Board, feature: Feature, scorer: &mut Scorer<'_>) {
        let weights = self.weights.iter().find(|(other, _)| *other == feature).map(|(_, weights)| weights);
        let Some(weights) = weights else { return };
        let mut around = Surroundings::new(&board.facts);
        let mut classes = Vec::new();
        each_coin(board, |payment, coin, truth| {
            feature.classes(&mut around, payment, coin, &mut classes);
            let mut guess: Vec<f64> = classes.iter().map(|class| weights.of(*class)).collect();
            graph::normalise(&mut guess);
            scorer.add(payment, &guess, truth);
        });
    }

    fn combined(&self, board: &Board, scorer: &mut Scorer<'_>) {
        let facts = &board.facts;
        let mut around = Surroundings::new(facts);
        let mut classes = Vec::new();
        let used: Vec<(Feature, &Weights, f64)> = self
            .weights
            .iter()
            .zip(self.trust.features)
            .filter(|(_, trust)| *trust > 0.0)
            .map(|((feature, weights), trust)| (*feature, weights, trust))
            .collect();
        let mut hints = |payment: usize, coin: usize, out: &mut Vec<f64>| {
            for (feature, weights, trust) in &used {
                feature.classes(&mut around, payment, coin, &mut classes);
                out.resize(classes.len(), 0.0);
                for (sum, class) in out.iter_mut().zip(&classes) {
                    *sum += weights.of(*class) * trust;
                }
            }
        };
        follow(board, &self.trust, &mut hints, scorer);
    }

    fn guess(&self, board: &Board, attack: Attack, scorer: &mut Scorer<'_>) {
        match attack {
            Attack::Identifiers => by_matches(board, scorer),
            Attack::Trace(feature) => self.trace(board, feature, scorer),
            Attack::Graph => follow(board, &Trust::GRAPH, &mut |_, _, _| {}, scorer),
            Attack::Combined => self.combined(board, scorer),
        }
    }

    /// The score of an attack.
    #[must_use]
    pub fn attack(&self, board: &Board, attack: Attack) -> Score {
        let learned = self.sharpness.iter().find(|(other, _)| *other == attack);
        let mut scorer = Scorer::new(&board.facts, learned.map_or(1.0, |(_, sharpness)| *sharpness));
        self.guess(board, attack, &mut scorer);
        scorer.score()
    }
}

/// Calls `visit` with each paid coin whose true reserve was known to the operator.
fn each_coin(board: &Board, mut visit: impl FnMut(usize, usize, usize)) {
    for (payment, paid) in board.facts.payments.iter().enumerate() {
        for (coin, part) in paid.coins.iter().enumerate() {
            if let Some(truth) = board.reserve_of.get(&part.coin_pub).filter(|index| **index < paid.reserves)
            {
                visit(payment, coin, *truth);
            }
        }
    }
}

fn by_matches(board: &Board, scorer: &mut Scorer<'_>) {
    each_coin(board, |payment, coin, truth| {
        let paid = &board.facts.payments[payment];
        let mut guess = vec![0.0; paid.reserves];
        let found = board.matches.get(&paid.coins[coin].coin_pub);
        for index in found.into_iter().flatten().filter(|index| **index < paid.reserves) {
            guess[*index] = 1.0;
        }
        let sum: f64 = guess.iter().sum();
        for probability in &mut guess {
            *probability = if sum > 0.0 { *probability / sum } else { 1.0 / paid.reserves as f64 };
        }
        scorer.add(payment, &guess, truth);
    });
}

fn follow(
    board: &Board,
    trust: &Trust,
    hints: &mut dyn FnMut(usize, usize, &mut Vec<f64>),
    scorer: &mut Scorer<'_>,
) {
    let facts = &board.facts;
    let mut visit = |payment: usize, coin: usize, guess: &[f64]| {
        let paid = &facts.payments[payment];
        let truth = board.reserve_of.get(&paid.coins[coin].coin_pub).filter(|index| **index < paid.reserves);
        if let Some(truth) = truth {
            scorer.add(payment, guess, *truth);
        }
    };
    graph::follow(facts, trust, hints, &mut visit);
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use batzen_wallet::core::discretion::Discretion;

    use super::*;

    /// The second of two small towns with the scores of all attacks, learned in the first.
    fn play(leak: Option<town::Leak>, discretion: Discretion) -> (Vec<Board>, HashMap<&'static str, Score>) {
        let options = TownOptions { people: 16, days: 10, discretion, plans_ahead: false, leak };
        let boards: Vec<Board> = (1..3).map(|seed| Board::new(seed, options).expect("a town")).collect();
        let experience = Experience::learn(&boards[..1]);
        let scores = Attack::ALL.map(|attack| (attack.name(), experience.attack(&boards[1], attack)));
        (boards, scores.into())
    }

    /// Towns with the wallet as it is, which several tests look at.
    fn plain() -> &'static (Vec<Board>, HashMap<&'static str, Score>) {
        static PLAIN: OnceLock<(Vec<Board>, HashMap<&'static str, Score>)> = OnceLock::new();
        PLAIN.get_or_init(|| play(None, Discretion::default()))
    }

    #[test]
    fn a_real_wallet_leaks_no_identifier() {
        let (boards, scores) = plain();
        let mut similarity = Similarity::default();
        for board in boards {
            assert!(board.matches.is_empty(), "a payment contains bytes of a withdrawal");
            similarity.add(&board.similarity);
        }
        assert!(similarity.coins > 100, "{similarity:?}");
        assert!(similarity.deviation().abs() < Similarity::DEVIATION_MAX, "{similarity:?}");
        let score = scores["identifiers"];
        assert!(score.payments > 150.0 && score.advantage().abs() < 1e-9, "{score:?}");
        // What people do is visible to the attacks that look at it.
        let combined = scores["combined"];
        assert!(combined.advantage() > 0.1 && combined.advantage() < 0.9, "{combined:?}");
    }

    #[test]
    fn a_planted_identifier_is_found() {
        let (_, scores) = play(Some(town::Leak::Identifier), Discretion::default());
        let score = scores["identifiers"];
        // The planted planchet is that of the newest withdrawal, and some coins are older.
        assert!(score.advantage() > 0.5 && score.account_advantage() > 0.95, "{score:?}");
    }

    #[test]
    fn withdrawals_of_exact_prices_are_found() {
        let (_, before) = plain();
        let (_, after) = play(Some(town::Leak::ExactPrice), Discretion::default());
        for (attack, least) in [("amounts", 0.3), ("timing", 0.6), ("denominations", 0.25), ("combined", 0.7)]
        {
            let (before, after) = (before[attack].advantage(), after[attack].advantage());
            assert!(after > least && after > before * 1.3, "{attack}: {before} {after}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_town() {
        let options = TownOptions {
            people: 4,
            days: 4,
            discretion: Discretion::default(),
            plans_ahead: false,
            leak: None,
        };
        let [one, other, third] = [1, 1, 2].map(|seed| town::live(seed, options).expect("a town").view.log);
        assert!(one == other && one != third && one.len() > 20);
    }

    #[test]
    fn a_secret_in_the_view_is_noticed() {
        let options = TownOptions {
            people: 3,
            days: 3,
            discretion: Discretion::default(),
            plans_ahead: false,
            leak: None,
        };
        let Lived { view, mut truth, .. } = town::live(5, options).expect("a town");
        assert_eq!(view.find_secret(&truth.secrets), Ok(None));
        let known = view.rows::<batzen_tables::exchange::Coins>().expect("rows")[0].key.coin_pub;
        truth.secrets.insert(*known.as_bytes());
        assert_eq!(view.find_secret(&truth.secrets), Ok(Some("coins")));
    }

    #[test]
    fn common_sums_make_purchases_wait_less() {
        let discretion = Discretion { round_sums: true, ..Discretion::default() };
        let (before, _) = plain();
        let (after, _) = play(None, discretion);
        assert!(after[1].price.waited * 3 < before[1].price.waited * 2);
        assert_eq!(after[1].price.payments, before[1].price.payments);
    }
}
