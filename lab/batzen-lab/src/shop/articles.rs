//! Articles that the shop sells.

pub(crate) struct Article {
    /// Its name in URLs.
    pub(crate) slug: &'static str,
    pub(crate) title: &'static str,
    /// In units of the backend's currency.
    pub(crate) price: &'static str,
    /// The text that everybody can read.
    pub(crate) teaser: &'static str,
    /// The text that readers pay for.
    pub(crate) text: &'static str,
}

pub(crate) static ARTICLES: [Article; 3] = [
    Article {
        slug: "blind-signatures",
        title: "An envelope with carbon paper",
        price: "0.5",
        teaser: "How does a bank sign a coin that it has never seen?",
        text: "Put a slip of paper with a number of your choice into an envelope lined with carbon paper. The bank \
               signs on the outside, and its signature goes through to the slip. You open the envelope at home: the \
               slip is signed, the bank has never seen its number, and when it comes back from a shop, the bank \
               knows its own hand but not yours.",
    },
    Article {
        slug: "change",
        title: "Change for a coin of eight",
        price: "0.3",
        teaser: "Why change in digital cash is new money, and why the taxman does not mind.",
        text: "Whoever pays 3 with a coin of 8 gets 5 back as fresh coins. They must not be linked to the old one, \
               or the next shop would learn about the last. But they must belong to whoever owned the old one, or \
               people would hand on money as change and nobody could tax it. So the wallet makes three proposals, \
               and the exchange has two of them opened: cheating works one time in three, and costs the coin.",
    },
    Article {
        slug: "batzen",
        title: "The coin with the bear",
        price: "1.2",
        teaser: "A short history of the batzen, which Bern struck from 1492.",
        text: "Bern needed a coin between the penny and the guilder, and put its bear on it. South German towns \
               copied the batzen until everybody had some and nobody trusted them; the Empire forbade it, and Swiss \
               cantons went on striking it until 1850. To this day, whoever says that something costs a good batzen \
               means that it is not cheap.",
    },
];
