//! Formulas of figures, and the marks with them in running text.
//!
//! A formula is a sequence of terms with `*`, `/`, `+` or `-` between them, computed from left to right. A term is a number or
//! `RESULT.FIGURE`: a directory of results, and the path of a figure in its file, for example
//! `deposit.cpu_us_per_op_by_stage.http`. A list is searched for the element with a name, or of a sweep with a value,
//! `_` standing for a space (`limits.limits.RSA-2048_blind_sign.library.per_s`). An object counts as the sum of its numbers.
//! `plan(payments-per-second=1000,coins=3)` is a result, too: a plan of `batzen-lab plan` with these options.

use std::path::Path;

use batzen_cli_support::numbers::{count, number};
use clap::Parser;
use serde_json::Value;

use crate::bench::plan::{self, PlanArgs};

type Result<T> = std::result::Result<T, String>;

/// The beginning and the end of a mark, which follows its figure.
const MARK: &str = "<!-- = ";
const MARK_END: &str = " -->";

/// The document in which each marked figure is the value of its formula.
pub(super) fn renew(document: &str, figure: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut renewed = String::with_capacity(document.len());
    let mut rest = document;
    while let Some((before, formula, after)) = next(rest) {
        renewed.push_str(before);
        renewed.push_str(&figure(formula).map_err(|error| format!("{formula}: {error}"))?);
        renewed.push_str(MARK);
        renewed.push_str(formula);
        renewed.push_str(MARK_END);
        rest = after;
    }
    Ok(renewed + rest)
}

/// The text before the first marked figure, the formula, and the text after the mark.
pub(super) fn next(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(MARK)?;
    let (formula, after) = rest.split_once(MARK_END)?;
    let before =
        before.trim_end_matches(|letter: char| letter.is_ascii_digit() || matches!(letter, ',' | '.' | '−'));
    Some((before, formula, after))
}

/// The value of a formula, as documents show it.
///
/// # Errors
/// When it is malformed, or names what no result has.
pub(super) fn evaluate(formula: &str, result: impl Fn(&str) -> Result<Value>) -> Result<String> {
    let mut terms = formula.split_whitespace();
    let first = terms.next().unwrap_or_default();
    if first.parse::<f64>().is_ok() {
        return Err("it begins with a number, not with a result".to_owned());
    }
    let mut value = term(first, &result)?;
    while let Some(operator) = terms.next() {
        let operand = term(terms.next().ok_or("it ends with an operator")?, &result)?.as_f64();
        let (left, right) = (value.as_f64().unwrap_or(f64::NAN), operand.unwrap_or(f64::NAN));
        let computed = match operator {
            "*" => left * right,
            "/" => left / right,
            "+" => left + right,
            "-" => left - right,
            _ => return Err(format!("{operator:?} is no operator")),
        };
        value = Value::from(computed);
    }
    match (value.as_u64(), value.as_f64()) {
        (Some(whole), _) => Ok(count(whole)),
        (None, Some(value)) if value.is_finite() => {
            // No digits that it does not have: 5.8, not 5.80.
            let (exact, rounded) = (value.to_string().replace('-', "−"), number(value));
            Ok(if value.abs() < 1_000.0 && exact.len() < rounded.len() { exact } else { rounded })
        }
        _ => Err("it has no value".to_owned()),
    }
}

fn term(text: &str, result: &impl Fn(&str) -> Result<Value>) -> Result<Value> {
    if let Ok(number) = text.parse::<f64>() {
        return Ok(Value::from(number));
    }
    let name = text.find(')').map_or(text, |end| &text[..=end]);
    let name = if name.len() < text.len() { name } else { text.split('.').next().unwrap_or_default() };
    let path = text[name.len()..].strip_prefix('.').ok_or_else(|| format!("{text:?} names no figure"))?;
    let whole = result(name)?;
    let mut value = &whole;
    for step in path.split('.') {
        let found = match value {
            Value::Array(elements) => elements.iter().find(|element| {
                let is_named = |key: &str| {
                    element
                        .get(key)
                        .and_then(Value::as_str)
                        .is_some_and(|name| name.replace(' ', "_") == step)
                };
                is_named("name") || is_named("operation") || is_named("value")
            }),
            other => other.get(step),
        };
        value = found.ok_or_else(|| format!("{name} has no figure {path}"))?;
    }
    match value {
        Value::Object(parts) => Ok(Value::from(parts.values().filter_map(Value::as_f64).sum::<f64>())),
        Value::Number(_) => Ok(value.clone()),
        _ => Err(format!("{path} of {name} is no number")),
    }
}

/// Parses options of a plan as those of `batzen-lab plan`.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Options {
    #[command(flatten)]
    args: PlanArgs,
}

/// The options of a plan, if the name is that of a plan.
pub(super) fn plan(name: &str) -> Option<Result<PlanArgs>> {
    let options = name.strip_prefix("plan(")?.strip_suffix(')')?;
    let words = options.split(',').map(|option| format!("--{option}"));
    Some(Options::try_parse_from(words).map(|options| options.args).map_err(|error| error.to_string()))
}

/// The plan for some options from the results below a directory, and the names of these results.
pub(super) fn compute(mut args: PlanArgs, results: &Path) -> Result<(Value, Vec<String>)> {
    args.results = Some(results.to_owned());
    let plan = plan::compute(&args).map_err(|error| error.to_string())?;
    let others = [("citus", plan.citus.is_some()), ("history", plan.memory_bytes > 0.0)];
    let others = others.into_iter().filter(|(_, is_used)| *is_used).map(|(name, _)| name.to_owned());
    let names = plan.costs.results.keys().cloned().chain(others).collect();
    Ok((serde_json::to_value(plan).map_err(|error| error.to_string())?, names))
}
