//! The enumeration of a service's commands: dispatch, typed answers, metrics.

#![allow(missing_docs)]

use std::sync::Arc;

use batzen_engine::{Batcher, Count, Plan, Rules, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_store::memory::MemoryBackend;
use batzen_store::{Store, record, table};

record! {
    pub key struct BoxKey {
        pub id: u64,
    }
}
record! {
    pub struct BoxRow {
        pub coins: u64,
    }
}
table! {
    Boxes(1, "boxes"): BoxKey => BoxRow;
}

pub(crate) struct Toy;

impl Rules for Toy {
    type Refusal = &'static str;
    batzen_engine::dispatch_to_commands!(Command);
}

batzen_engine::commands! {
    /// A change of boxes.
    #[derive(Clone, Debug)]
    Toy: Fill, Empty
}

#[derive(Clone, Debug)]
pub(crate) struct Fill {
    id: [u8; 1],
    coins: u64,
}

impl batzen_engine::Command<Toy> for Fill {
    type Answer = u64;

    const METRIC: Option<&'static str> = Some("fill");

    fn events(&self) -> usize {
        2
    }

    fn owner(&self) -> Option<&[u8]> {
        Some(&self.id)
    }

    fn plan(&self, _: &Toy, plan: &mut Plan) {
        plan.row::<Boxes>(BoxKey { id: self.id[0].into() });
    }

    fn execute(&self, _: &Toy, rows: &mut WorkingSet, _: Timestamp) -> Result<u64, &'static str> {
        rows.put::<Boxes>(&BoxKey { id: self.id[0].into() }, BoxRow { coins: self.coins });
        Ok(self.coins)
    }

    fn count(coins: &u64) -> Count {
        Count { new: *coins, repeated: 0 }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Empty;

impl batzen_engine::Command<Toy> for Empty {
    type Answer = ();
    const IS_BACKGROUND: bool = true;

    fn plan(&self, _: &Toy, _: &mut Plan) {}

    fn execute(&self, _: &Toy, _: &mut WorkingSet, _: Timestamp) -> Result<(), &'static str> {
        Err("empty")
    }
}

#[test]
fn each_command_decides_by_its_own_rule() {
    let batcher = Batcher::new(Arc::new(Toy), Store::new(MemoryBackend::new()));
    let commands = [Command::from(Fill { id: [7], coins: 3 }), Empty.into()];
    let verdicts = batcher.run(&commands, &|| Timestamp::ZERO).unwrap();
    assert_eq!(verdicts, [Ok(Answer::Fill(3)), Err("empty")]);
    assert_eq!(commands.each_ref().map(|command| Toy.is_background(command)), [false, true]);
    assert_eq!(commands.each_ref().map(|command| Toy.owner(command)), [Some(&[7][..]), None]);
    assert_eq!(commands.each_ref().map(|command| Toy.events(command)), [2, 1]);
}

mod alike {
    use super::*;

    pub(super) struct Counting;

    impl Rules for Counting {
        type Refusal = ();
        batzen_engine::dispatch_to_commands!(Command);
    }

    batzen_engine::commands! {
        #[derive(Clone, Debug)]
        Counting => u64: One, Two
    }

    #[derive(Clone, Debug)]
    pub(super) struct One;

    #[derive(Clone, Debug)]
    pub(super) struct Two;

    impl batzen_engine::Command<Counting> for One {
        type Answer = u64;

        fn plan(&self, _: &Counting, _: &mut Plan) {}

        fn execute(&self, _: &Counting, _: &mut WorkingSet, _: Timestamp) -> Result<u64, ()> {
            Ok(1)
        }
    }

    impl batzen_engine::Command<Counting> for Two {
        type Answer = u64;

        fn plan(&self, _: &Counting, _: &mut Plan) {}

        fn execute(&self, _: &Counting, _: &mut WorkingSet, _: Timestamp) -> Result<u64, ()> {
            Ok(2)
        }
    }
}

#[test]
fn commands_may_have_one_type_of_answer() {
    let batcher = Batcher::new(Arc::new(alike::Counting), Store::new(MemoryBackend::new()));
    let commands = [alike::One.into(), alike::Two.into()];
    assert_eq!(batcher.run(&commands, &|| Timestamp::ZERO).unwrap(), [Ok(1), Ok(2)]);
}

#[test]
fn answers_are_typed_and_counted() {
    assert_eq!(Fill::answer(Answer::Fill(3)), 3);
    assert_eq!(Answer::metrics().collect::<Vec<_>>(), ["fill"]);
    assert_eq!(Answer::Fill(3).metric(), Some(("fill", Count { new: 3, repeated: 0 })));
    assert_eq!(Answer::Empty(()).metric(), None);
    assert_eq!(Count::of(2, true), Count { new: 0, repeated: 2 });
}

#[test]
#[should_panic(expected = "the rules answered Fill with Empty")]
fn the_answer_to_another_command_is_a_broken_assertion() {
    Fill::answer(Answer::Empty(()));
}
