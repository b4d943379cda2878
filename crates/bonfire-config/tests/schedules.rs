//! Learning rates against those of DeepSpeed's own schedulers, in the steps in which its engine has them.

use bonfire_config::deepspeed::{DeepSpeedFile, Program};
use serde_json::{Value, json};

#[test]
fn rates_are_those_of_deepspeed() {
    let golden: Value = serde_json::from_str(include_str!("golden/schedules.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 13);
    for case in cases {
        // Adam has betas, which OneCycle changes, too.
        let optimizer = match case["type"].as_str() {
            Some("OneCycle") => "SGD",
            _ => "Adam",
        };
        let file = json!({
            "optimizer": { "type": optimizer, "params": { "lr": golden["optimizer_rate"] } },
            "scheduler": { "type": case["type"], "params": case["params"] },
        });
        let file = DeepSpeedFile::parse(&file.to_string()).unwrap();
        let schedule = file.resolve(&Program::default()).unwrap().schedule.unwrap();
        let equal = |found: f64, expected: f64| {
            (found - expected).abs() <= 1e-12 * expected.abs().max(1e-9)
        };
        let steps = case["steps"].as_array().unwrap();
        for (index, step) in steps.iter().enumerate() {
            let step = step.as_u64().unwrap();
            let expected = case["rates"][index].as_f64().unwrap();
            let found = schedule.rate(step);
            assert!(equal(found, expected), "{case}: step {step}: {found} and {expected}");
        }
    }
}
