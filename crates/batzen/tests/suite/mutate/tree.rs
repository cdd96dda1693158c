//! JSON that may be invalid: objects with repeated members, numbers out of every range, tokens that are not
//! JSON at all.

use serde_json::Value;

use crate::mutate::dice::Dice;
use crate::mutate::text::Pool;

#[derive(Clone, Debug)]
pub(super) enum Tree {
    /// Written verbatim.
    Token(String),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// Numbers at the edges of what parsers and rules accept, and tokens that are not numbers.
const TOKENS: [&str; 26] = [
    "0",
    "-0",
    "1",
    "-1",
    "1.5",
    "1e3",
    "1e-7",
    "1e400",
    "-1e400",
    "4294967296",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "253402300800",
    "18446744073709",
    "true",
    "false",
    "null",
    "\"never\"",
    "\"forever\"",
    "[]",
    "{}",
    "00",
    "NaN",
    "",
];

impl From<&Value> for Tree {
    fn from(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(members) => {
                Self::Object(members.iter().map(|(name, member)| (name.clone(), member.into())).collect())
            }
            other => Self::Token(other.to_string()),
        }
    }
}

impl Tree {
    /// Writes it as JSON.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Token(token) => out.extend_from_slice(token.as_bytes()),
            Self::Text(text) => serde_json::to_writer(out, text).expect("text is JSON"),
            Self::List(items) => {
                out.push(b'[');
                for (place, item) in items.iter().enumerate() {
                    if place > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Self::Object(members) => {
                out.push(b'{');
                for (place, (name, member)) in members.iter().enumerate() {
                    if place > 0 {
                        out.push(b',');
                    }
                    serde_json::to_writer(&mut *out, name).expect("text is JSON");
                    out.push(b':');
                    member.write(out);
                }
                out.push(b'}');
            }
        }
    }

    pub(super) fn texts<'a>(&'a self, found: &mut Vec<&'a str>) {
        match self {
            Self::Token(_) => {}
            Self::Text(text) => found.push(text),
            Self::List(items) => items.iter().for_each(|item| item.texts(found)),
            Self::Object(members) => members.iter().for_each(|(_, member)| member.texts(found)),
        }
    }

    fn containers(&self) -> usize {
        match self {
            Self::Token(_) | Self::Text(_) => 0,
            Self::List(items) => 1 + items.iter().map(Self::containers).sum::<usize>(),
            Self::Object(members) => 1 + members.iter().map(|(_, member)| member.containers()).sum::<usize>(),
        }
    }

    /// The list or object with this number, counted from the root down; `number` decreases by those passed.
    fn container(&mut self, number: &mut usize) -> Option<&mut Self> {
        if matches!(self, Self::Token(_) | Self::Text(_)) {
            return None;
        }
        if *number == 0 {
            return Some(self);
        }
        *number -= 1;
        match self {
            Self::List(items) => items.iter_mut().find_map(|item| item.container(number)),
            Self::Object(members) => members.iter_mut().find_map(|(_, member)| member.container(number)),
            Self::Token(_) | Self::Text(_) => None,
        }
    }

    /// Changes one thing somewhere.
    pub(super) fn mutate(&mut self, dice: &mut Dice, pool: &Pool) {
        let count = self.containers();
        if count == 0 {
            *self = odd(dice, self, pool);
            return;
        }
        let mut number = dice.below(count);
        match self.container(&mut number).expect("there are so many containers") {
            Self::List(items) => mutate_list(items, dice, pool),
            Self::Object(members) => mutate_object(members, dice, pool),
            Self::Token(_) | Self::Text(_) => unreachable!("these contain nothing"),
        }
    }
}

fn mutate_list(items: &mut Vec<Tree>, dice: &mut Dice, pool: &Pool) {
    if items.is_empty() {
        items.push(Tree::Token(dice.pick(&TOKENS).to_owned()));
        return;
    }
    let place = dice.below(items.len());
    match dice.below(8) {
        0 => drop(items.remove(place)),
        1 => items.push(items[place].clone()),
        2 => {
            let (item, count) = (items[place].clone(), [2, 65, 129, 300][dice.below(4)]);
            items.extend(std::iter::repeat_n(item, count));
        }
        3 => items.clear(),
        4 => items.reverse(),
        _ => items[place] = odd(dice, &items[place], pool),
    }
}

fn mutate_object(members: &mut Vec<(String, Tree)>, dice: &mut Dice, pool: &Pool) {
    if members.is_empty() {
        members.push(("x".to_owned(), Tree::Token(dice.pick(&TOKENS).to_owned())));
        return;
    }
    let place = dice.below(members.len());
    match dice.below(16) {
        0 | 1 => drop(members.remove(place)),
        2 => members.push(members[place].clone()),
        3 => {
            let (name, member) = members[place].clone();
            members.push((name, odd(dice, &member, pool)));
        }
        4 => members[place].0 = pool.mutate(dice, &members[place].0),
        5 => {
            let other = dice.below(members.len());
            let member = members[other].1.clone();
            members[place].1 = member;
        }
        6 => members.push((format!("unknown_{}", dice.below(9)), Tree::Token("1".to_owned()))),
        _ => members[place].1 = odd(dice, &members[place].1, pool),
    }
}

/// A value different from the old one.
fn odd(dice: &mut Dice, old: &Tree, pool: &Pool) -> Tree {
    match (old, dice.below(10)) {
        (Tree::Text(text), 0..=6) => Tree::Text(pool.mutate(dice, text)),
        (Tree::Token(token), 0..=3) => match token.parse::<i128>() {
            Ok(number) => Tree::Token((number + dice.below(2001) as i128 - 1000).to_string()),
            Err(_) => Tree::Token(dice.pick(&TOKENS).to_owned()),
        },
        (_, 7) if dice.chance(30) => {
            let depth = [5, 127, 129, 2000][dice.below(4)];
            let (open, close) = if dice.chance(50) { ("[", "]") } else { ("{\"a\":", "}") };
            Tree::Token(format!("{}1{}", open.repeat(depth), close.repeat(depth)))
        }
        (_, 8) => Tree::Token("9".repeat([20, 40, 400][dice.below(3)])),
        (_, 9) => Tree::Text(pool.any(dice).to_owned()),
        _ => Tree::Token(dice.pick(&TOKENS).to_owned()),
    }
}
