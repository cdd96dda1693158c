//! Whether coins pay an order (merchant chapter 2.3.3).

use batzen_protocol::{AmountError, Money};

/// The demand of a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) amount: Money,
    /// The deposit fees that the shop pays.
    pub(crate) max_fee: Money,
    /// The wire fee that the shop pays.
    pub(crate) max_wire_fee: Money,
    /// Over how many payments the customer's part of the wire fee is spread; at least 1.
    pub(crate) wire_fee_amortization: u32,
}

/// The payment by a coin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// Its exchange.
    pub exchange_url: String,
    /// Its contribution, deposit fee included.
    pub amount: Money,
    /// Its deposit fee.
    pub deposit_fee: Money,
    /// The wire fee of its exchange.
    pub wire_fee: Money,
}

batzen_protocol::refusals! {
    /// Why coins do not pay an order.
    #[derive(Copy)]
    pub enum Insufficient {
        /// A coin's contribution is less than its fee.
        FeesExceedPayment = "a coin's contribution is less than its deposit fee",
            MERCHANT_POST_ORDERS_ID_PAY_FEES_EXCEED_PAYMENT;
        /// The amount is paid, but not the fees beyond what the shop pays.
        DueToFees = "the coins cover the amount, but not their fees",
            MERCHANT_POST_ORDERS_ID_PAY_INSUFFICIENT_DUE_TO_FEES;
        /// The amount is not paid.
        Payment = "the coins do not cover the amount", MERCHANT_POST_ORDERS_ID_PAY_PAYMENT_INSUFFICIENT;
        /// The amount was paid, but refunds took some of it.
        Refunded = "refunds reduced the payment", MERCHANT_POST_ORDERS_ID_PAY_REDUCED_BY_REFUNDS;
        /// Overflow of a sum.
        Overflow = "amount overflow", MERCHANT_POST_ORDERS_ID_PAY_AMOUNT_OVERFLOW;
    }
}

/// Checks that coins, less what was refunded, pay an order.
///
/// # Errors
/// Why they do not.
pub(crate) fn check(due: &Due, coins: &[Payment], refunded: Money) -> Result<(), Insufficient> {
    let overflow = |_: AmountError| Insufficient::Overflow;
    if coins.iter().any(|coin| coin.amount < coin.deposit_fee) {
        return Err(Insufficient::FeesExceedPayment);
    }
    let (mut paid, mut fees, mut wire) = (Money::ZERO, Money::ZERO, Money::ZERO);
    for (n, coin) in coins.iter().enumerate() {
        paid = paid.checked_add(coin.amount).map_err(overflow)?;
        fees = fees.checked_add(coin.deposit_fee).map_err(overflow)?;
        if !coins[..n].iter().any(|earlier| earlier.exchange_url == coin.exchange_url) {
            wire = wire.checked_add(coin.wire_fee).map_err(overflow)?;
        }
    }
    let beyond = |sum: Money, covered: Money| sum.checked_sub(covered).unwrap_or(Money::ZERO);
    let customers = beyond(wire, due.max_wire_fee)
        .checked_div(due.wire_fee_amortization.max(1).into())
        .map_err(overflow)?;
    let fees = fees.checked_add(customers).map_err(overflow)?;
    let needed = due.amount.checked_add(beyond(fees, due.max_fee)).map_err(overflow)?;
    if beyond(paid, refunded) >= needed {
        Ok(())
    } else if paid >= needed {
        Err(Insufficient::Refunded)
    } else if paid >= due.amount {
        Err(Insufficient::DueToFees)
    } else {
        Err(Insufficient::Payment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn m(text: &str) -> Money {
        text.parse().unwrap()
    }

    fn coin(exchange_url: &str, amount: &str, deposit_fee: &str, wire_fee: &str) -> Payment {
        let exchange_url = exchange_url.to_owned();
        Payment { exchange_url, amount: m(amount), deposit_fee: m(deposit_fee), wire_fee: m(wire_fee) }
    }

    fn check(due: &Due, coins: &[Payment]) -> Result<(), Insufficient> {
        super::check(due, coins, Money::ZERO)
    }

    #[test]
    fn fees_beyond_what_the_shop_pays_are_the_customers() {
        let due = |max_fee: &str, max_wire_fee: &str, wire_fee_amortization: u32| Due {
            amount: m("5"),
            max_fee: m(max_fee),
            max_wire_fee: m(max_wire_fee),
            wire_fee_amortization,
        };
        let one = [coin("a", "5", "0.1", "0.3")];
        assert_eq!(check(&due("0.1", "0.3", 1), &one), Ok(()));
        assert_eq!(check(&due("0.09", "0.3", 1), &one), Err(Insufficient::DueToFees));
        assert_eq!(check(&due("0.1", "0.2", 1), &one), Err(Insufficient::DueToFees));
        assert_eq!(check(&due("0.11", "0.2", 10), &one), Ok(()), "a tenth of the rest of the wire fee");
        assert_eq!(check(&due("0.4", "0", 0), &one), Ok(()), "no amortization is one");
        assert_eq!(check(&due("1", "1", 1), &[coin("a", "4.99", "0", "0")]), Err(Insufficient::Payment));
        assert_eq!(
            check(&due("1", "1", 1), &[coin("a", "5", "0", "0"), coin("a", "0.1", "0.2", "0")]),
            Err(Insufficient::FeesExceedPayment)
        );
        // The wire fee counts once for each exchange.
        let same = [coin("a", "3", "0", "0.3"), coin("a", "2.3", "0", "0.3")];
        assert_eq!(check(&due("0", "0", 1), &same), Ok(()));
        let two = [coin("a", "3", "0", "0.3"), coin("b", "2.3", "0", "0.3")];
        assert_eq!(check(&due("0", "0", 1), &two), Err(Insufficient::DueToFees));
        let nothing = Due { amount: Money::ZERO, ..due("0", "0", 1) };
        assert_eq!(check(&nothing, &[]), Ok(()));
        let dear = Due { amount: m("5"), ..due("1", "1", 1) };
        let coins = [coin("a", "5", "0", "0")];
        assert_eq!(super::check(&dear, &coins, m("0.01")), Err(Insufficient::Refunded));
        let much = Due { amount: Money::MAX, ..due("0", "0", 1) };
        let max = Payment { amount: Money::MAX, ..coin("a", "1", "0.1", "0") };
        assert_eq!(check(&much, &[max.clone(), max]), Err(Insufficient::Overflow));
    }
}
