//! Commands that carry their rules, and the enumeration of a service's commands.

use batzen_protocol::Timestamp;

use crate::{Plan, Rules, WorkingSet};

/// A command and the rule that decides it, under the rules `R` of a service. A new command is one implementation
/// and one row of the service's [`commands!`](crate::commands).
pub trait Command<R: Rules> {
    /// The answer if the command took effect, now or (an idempotent repetition) before.
    type Answer;

    /// The name under which metrics count what the command does, if they do.
    const METRIC: Option<&'static str> = None;

    /// Marks a command whose answer only a worker waits for. See [`Rules::is_background`].
    const IS_BACKGROUND: bool = false;

    /// See [`Rules::events`].
    fn events(&self) -> usize {
        1
    }

    /// See [`Rules::is_background`].
    fn is_background(&self) -> bool {
        Self::IS_BACKGROUND
    }

    /// See [`Rules::owner`].
    fn owner(&self) -> Option<&[u8]> {
        None
    }

    /// See [`Rules::other_owners`].
    fn other_owners<'a>(&'a self, _visit: &mut dyn FnMut(&'a [u8])) {}

    /// See [`Rules::plan`].
    fn plan(&self, rules: &R, plan: &mut Plan);

    /// See [`Rules::execute`].
    fn execute(&self, rules: &R, rows: &mut WorkingSet, now: Timestamp) -> Result<Self::Answer, R::Refusal>;

    /// Counts what an answer adds to [`Command::METRIC`].
    fn count(_answer: &Self::Answer) -> Count {
        Count::default()
    }
}

/// The number of things that a command did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Done now.
    pub new: u64,
    /// Done before: the command was a repetition.
    pub repeated: u64,
}

impl Count {
    /// Counts things that were all done now, or all before.
    #[must_use]
    pub fn of(things: usize, repeated: bool) -> Self {
        let things = things as u64;
        if repeated { Self { new: 0, repeated: things } } else { Self { new: things, repeated: 0 } }
    }
}

/// Declares the commands of a service. Each row names a type that implements [`Command`](trait@crate::Command). The
/// result is
///
/// * `Command`, with a variant for each of them, which dispatches with a plain `match`;
/// * `Answer`, with a variant for the answer of each;
/// * `TypedCommand`, for functions that submit any of them and return its own answer.
///
/// Rules that answer several commands alike declare `Answer` themselves. Their rows say how to extract the command's
/// own answer: `SetPassword: () = Answer::PasswordSet => (),`. If all commands have one type of answer, the rules are
/// followed by it (`SwitchRules => Consequences:`), and only `Command` is declared.
#[macro_export]
macro_rules! commands {
    (@enumerate [$(#[$meta:meta])*] $rules:ty => $answer:ty; $($command:ident = $wrap:expr;)+) => {
        $(#[$meta])*
        pub enum Command {
            $(#[doc = concat!("See [`", stringify!($command), "`].")] $command($command),)+
        }

        impl $crate::Command<$rules> for Command {
            type Answer = $answer;

            fn events(&self) -> usize {
                match self {
                    $(Self::$command(command) => $crate::Command::<$rules>::events(command),)+
                }
            }

            fn is_background(&self) -> bool {
                match self {
                    $(Self::$command(command) => $crate::Command::<$rules>::is_background(command),)+
                }
            }

            fn owner(&self) -> Option<&[u8]> {
                match self {
                    $(Self::$command(command) => $crate::Command::<$rules>::owner(command),)+
                }
            }

            fn other_owners<'a>(&'a self, visit: &mut dyn FnMut(&'a [u8])) {
                match self {
                    $(Self::$command(command) => $crate::Command::<$rules>::other_owners(command, visit),)+
                }
            }

            fn plan(&self, rules: &$rules, plan: &mut $crate::Plan) {
                match self {
                    $(Self::$command(command) => $crate::Command::<$rules>::plan(command, rules, plan),)+
                }
            }

            fn execute(
                &self,
                rules: &$rules,
                rows: &mut $crate::WorkingSet,
                now: ::batzen_protocol::Timestamp,
            ) -> Result<$answer, <$rules as $crate::Rules>::Refusal> {
                match self {
                    $(Self::$command(command) => {
                        $crate::Command::<$rules>::execute(command, rules, rows, now).map($wrap)
                    })+
                }
            }
        }

        $(
            impl From<$command> for Command {
                fn from(command: $command) -> Self {
                    Self::$command(command)
                }
            }
        )+
    };
    (@declare [$(#[$meta:meta])*] $rules:ty; $($command:ident: $own:ty = $wrap:expr, $pattern:pat => $answer:expr;)+) => {
        $crate::commands! {
            @enumerate [$(#[$meta])*] $rules => Answer;
            $($command = $wrap;)+
        }

        /// A command with the type of its own answer.
        pub trait TypedCommand: Into<Command> {
            /// The command's own answer.
            type Answer;

            /// Extracts it from the rules' answer.
            ///
            /// # Panics
            /// If it is the answer to another command, which is a bug in the rules.
            fn answer(answer: Answer) -> Self::Answer;
        }

        impl TypedCommand for Command {
            type Answer = Answer;

            fn answer(answer: Answer) -> Answer {
                answer
            }
        }

        $(
            impl TypedCommand for $command {
                type Answer = $own;

                fn answer(answer: Answer) -> $own {
                    match answer {
                        $pattern => $answer,
                        other => panic!("the rules answered {} with {other:?}", stringify!($command)),
                    }
                }
            }
        )+
    };
    ($(#[$meta:meta])* $rules:ty => $answer:ty: $($command:ident),+ $(,)?) => {
        $crate::commands! {
            @enumerate [$(#[$meta])*] $rules => $answer;
            $($command = ::std::convert::identity;)+
        }
    };
    ($(#[$meta:meta])* $rules:ty: $($command:ident),+ $(,)?) => {
        $crate::commands! {
            @declare [$(#[$meta])*] $rules;
            $($command: <$command as $crate::Command<$rules>>::Answer
                = Answer::$command, Answer::$command(answer) => answer;)+
        }

        /// The answer to a command that took effect, now or before.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Answer {
            $(
                #[doc = concat!("To [`", stringify!($command), "`].")]
                $command(<$command as $crate::Command<$rules>>::Answer),
            )+
        }

        impl Answer {
            /// The metrics of all commands that have one.
            pub fn metrics() -> impl Iterator<Item = &'static str> {
                [$(<$command as $crate::Command<$rules>>::METRIC),+].into_iter().flatten()
            }

            /// The command's metric, and what the answer adds to it.
            #[must_use]
            pub fn metric(&self) -> Option<(&'static str, $crate::Count)> {
                match self {
                    $(Self::$command(answer) => {
                        let count = |name| (name, <$command as $crate::Command<$rules>>::count(answer));
                        <$command as $crate::Command<$rules>>::METRIC.map(count)
                    })+
                }
            }
        }
    };
    ($(#[$meta:meta])* $rules:ty: $($command:ident: $own:ty = $pattern:pat => $answer:expr),+ $(,)?) => {
        $crate::commands! {
            @declare [$(#[$meta])*] $rules;
            $($command: $own = ::std::convert::identity, $pattern => $answer;)+
        }
    };
}

/// Lets an `impl Rules` decide by what its [`Command`](trait@crate::Command)s carry.
#[macro_export]
macro_rules! dispatch_to_commands {
    ($command:ty) => {
        type Command = $command;
        type Answer = <$command as $crate::Command<Self>>::Answer;

        fn plan(&self, command: &$command, plan: &mut $crate::Plan) {
            $crate::Command::plan(command, self, plan);
        }

        fn execute(
            &self,
            rows: &mut $crate::WorkingSet,
            command: &$command,
            now: ::batzen_protocol::Timestamp,
        ) -> Result<Self::Answer, Self::Refusal> {
            $crate::Command::execute(command, self, rows, now)
        }

        fn events(&self, command: &$command) -> usize {
            $crate::Command::<Self>::events(command)
        }

        fn is_background(&self, command: &$command) -> bool {
            $crate::Command::<Self>::is_background(command)
        }

        fn owner<'a>(&self, command: &'a $command) -> Option<&'a [u8]> {
            $crate::Command::<Self>::owner(command)
        }

        fn other_owners<'a>(&self, command: &'a $command, visit: &mut dyn FnMut(&'a [u8])) {
            $crate::Command::<Self>::other_owners(command, visit);
        }
    };
}
