//! The parties that participants register as their customers for account lookups. A party (a phone number, an
//! account) is stored as a hash of its identifier, so that the table is not a list of identifiers.

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::switch::{Parties, PartyKey, PartyRow};

use super::{Consequences, Decided, SwitchRules};

/// The most parties in one command.
pub const PARTIES_MAX: usize = 1000;

/// Registers customers of a participant. The consequences give the places of those that another participant has
/// registered. Repeating it is harmless.
#[derive(Clone, Debug)]
pub struct RegisterParties {
    /// The parties.
    pub parties: Vec<PartyKey>,
    /// The participant.
    pub participant: u32,
}

impl Command<SwitchRules> for RegisterParties {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        self.parties.iter().for_each(|party| plan.row::<Parties>(party.clone()));
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, now: Timestamp) -> Decided {
        let Self { parties, participant } = self;
        assert!(parties.len() <= PARTIES_MAX, "commands are bounded");
        let row = PartyRow { participant: *participant, registered: now };
        let mut consequences = Consequences::default();
        for (place, party) in (0_u16..).zip(parties) {
            match rows.get::<Parties>(party) {
                None => rows.insert::<Parties>(party, row.clone()),
                Some(known) if known.participant == *participant => {}
                Some(_) => consequences.refused.push(place),
            }
        }
        Ok(consequences)
    }
}

/// Removes a customer of the participant. The consequences give the place 0 if the party is not its customer.
#[derive(Clone, Debug)]
pub struct RemoveParty {
    /// The party.
    pub party: PartyKey,
    /// The participant.
    pub participant: u32,
}

impl Command<SwitchRules> for RemoveParty {
    type Answer = Consequences;

    fn plan(&self, _: &SwitchRules, plan: &mut Plan) {
        plan.row::<Parties>(self.party.clone());
    }

    fn execute(&self, _: &SwitchRules, rows: &mut WorkingSet, _: Timestamp) -> Decided {
        match rows.get::<Parties>(&self.party) {
            Some(row) if row.participant == self.participant => {
                rows.delete::<Parties>(&self.party);
                Ok(Consequences::default())
            }
            _ => Ok(Consequences { refused: vec![0], ..Consequences::default() }),
        }
    }
}
