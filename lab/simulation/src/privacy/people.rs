//! The people of the town: their paydays, habits and purchases. All choices follow from a seed.

use crate::random::Random;
use crate::swarm::{HOUR, SECOND};

/// A day, in microseconds.
pub const DAY: u64 = 24 * HOUR;

/// The trade of a shop, which determines its prices and who buys when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trade {
    /// A single ticket: two fixed prices.
    Transit,
    /// Coffee and a roll: a short price list.
    Cafe,
    /// A newspaper, a snack.
    Kiosk,
    /// Groceries: many small sums, some large ones.
    Supermarket,
    /// A lunch or a dinner.
    Restaurant,
    /// Clothes, books, tools.
    Store,
    /// The landlord: one large sum a month.
    Rent,
}

impl Trade {
    /// All trades, and how many shops a town of a hundred people has of each.
    pub const ALL: [(Self, u64); 7] = [
        (Self::Transit, 1),
        (Self::Cafe, 5),
        (Self::Kiosk, 3),
        (Self::Supermarket, 3),
        (Self::Restaurant, 4),
        (Self::Store, 5),
        (Self::Rent, 2),
    ];

    /// A price, in cents. Prices are multiples of five cents.
    fn price(self, random: &mut Random) -> u64 {
        let cents = match self {
            Self::Transit => *random.pick(&[320, 320, 320, 460]),
            Self::Cafe => *random.pick(&[420, 450, 480, 480, 520, 650, 780, 930]),
            Self::Kiosk => random.between(150, 1_200),
            // Most baskets are small: the product of two draws is skewed to the left.
            Self::Supermarket => 350 + random.between(0, 100) * random.between(1, 100) * 12 / 10,
            Self::Restaurant => random.between(32, 130) * 50,
            Self::Store => 990 + random.between(0, 60) * random.between(1, 60) * 4,
            Self::Rent => random.between(55, 140) * 1_000,
        };
        cents / 5 * 5
    }
}

/// The way in which a person decides on the amount to withdraw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// A round sum, ahead: when the wallet is nearly empty.
    Ahead {
        /// The sum, in cents.
        sum: u64,
    },
    /// When a purchase needs it: what is missing, rounded up to a multiple of ten.
    Round,
    /// When a purchase needs it: exactly what is missing.
    Exact,
}

/// A purchase that somebody intends to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purchase {
    /// The shop, by its number.
    pub shop: u64,
    /// Its price, in cents.
    pub cents: u64,
}

/// Something that a person does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Buy.
    Buy(Purchase),
    /// Look into the wallet, and withdraw if it is nearly empty and the person plans ahead.
    Look,
}

/// A person.
#[derive(Clone, Debug)]
pub struct Person {
    /// Its habit of withdrawing.
    pub habit: Habit,
    /// Its acts, by time since the start, sorted.
    pub acts: Vec<(u64, Act)>,
}

/// The shops of a town of this many people: their trades, by number.
#[must_use]
pub fn shops(people: usize) -> Vec<Trade> {
    let mut shops = Vec::new();
    for (trade, per_hundred) in Trade::ALL {
        let count = (per_hundred * people as u64).div_ceil(100);
        shops.extend(std::iter::repeat_n(trade, usize::try_from(count).expect("few shops")));
    }
    shops
}

/// A moment on a day, around an hour.
fn moment(random: &mut Random, day: u64, hour: u64) -> u64 {
    let base = day * DAY + hour * HOUR;
    base + random.below(HOUR * 2) + random.below(SECOND)
}

/// Draws a person's life for some days.
#[must_use]
pub fn draw(random: &mut Random, shops: &[Trade], days: u64) -> Person {
    let habit = match random.below(100) {
        0..55 => Habit::Ahead { sum: *random.pick(&[5_000, 10_000, 10_000, 20_000]) },
        55..80 => Habit::Round,
        _ => Habit::Exact,
    };
    // Everybody has a favourite of each trade.
    let favourites: Vec<(Trade, u64)> = Trade::ALL
        .into_iter()
        .map(|(trade, _)| {
            let of_trade: Vec<u64> =
                shops.iter().zip(0..).filter(|(other, _)| **other == trade).map(|(_, n)| n).collect();
            (trade, *random.pick(&of_trade))
        })
        .collect();
    let payday = match random.below(100) {
        0..60 => 25,
        60..85 => 15,
        _ => 1,
    };
    let commutes = random.chance(400);
    let drinks = random.chance(450);
    let rents = random.chance(250);
    let rent = Trade::Rent.price(random);
    let mut acts = Vec::new();
    let buy = |random: &mut Random, trade: Trade| {
        let others: Vec<u64> =
            shops.iter().zip(0..).filter(|(other, _)| **other == trade).map(|(_, n)| n).collect();
        let favourite = favourites.iter().find(|(other, _)| *other == trade).map_or(0, |(_, n)| *n);
        let shop = if random.chance(700) { favourite } else { *random.pick(&others) };
        Act::Buy(Purchase { shop, cents: trade.price(random) })
    };
    for day in 0..days {
        let is_workday = day % 7 < 5;
        // Days of a month of 30 days; the first day of the run is the 20th.
        let date = (day + 19) % 30 + 1;
        if is_workday && commutes {
            for hour in [7, 17] {
                if random.chance(850) {
                    acts.push((moment(random, day, hour), buy(random, Trade::Transit)));
                }
            }
        }
        if is_workday && drinks && random.chance(650) {
            acts.push((moment(random, day, 9), buy(random, Trade::Cafe)));
        }
        if random.chance(120) {
            acts.push((moment(random, day, 12), buy(random, Trade::Kiosk)));
        }
        if random.chance(if is_workday { 250 } else { 450 }) {
            let hour = if is_workday { 17 } else { 10 };
            acts.push((moment(random, day, hour), buy(random, Trade::Supermarket)));
        }
        if random.chance(if is_workday { 120 } else { 200 }) {
            acts.push((
                moment(random, day, if is_workday { 12 } else { 19 }),
                buy(random, Trade::Restaurant),
            ));
        }
        if random.chance(60) {
            acts.push((moment(random, day, 15), buy(random, Trade::Store)));
        }
        if rents && date == 1 {
            let shop = favourites.iter().find(|(trade, _)| *trade == Trade::Rent).map_or(0, |(_, n)| *n);
            acts.push((moment(random, day, 8), Act::Buy(Purchase { shop, cents: rent })));
        }
        // People who plan ahead look on payday and now and then in the evening.
        if date == payday || random.chance(250) {
            acts.push((moment(random, day, 20), Act::Look));
        }
    }
    acts.sort_by_key(|(at, _)| *at);
    Person { habit, acts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_multiples_of_five_cents_and_lives_are_busy() {
        let mut random = Random::new(1);
        let shops = shops(100);
        assert_eq!(shops.len(), 23);
        let mut purchases = 0;
        for _ in 0..100 {
            let person = draw(&mut random, &shops, 28);
            assert!(person.acts.is_sorted_by_key(|(at, _)| *at));
            for (_, act) in person.acts {
                if let Act::Buy(purchase) = act {
                    assert!(purchase.cents > 0 && purchase.cents.is_multiple_of(5), "{purchase:?}");
                    purchases += 1;
                }
            }
        }
        // About one and a half a day for each person.
        assert!((2_800..8_400).contains(&purchases), "{purchases}");
    }
}
