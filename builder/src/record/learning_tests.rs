//! What a record says about learning beside its text.

use serde_json::json;

use super::tests::{STRIP, reason, record};
use super::*;

#[test]
fn what_a_record_says_about_learning_is_heeded_or_refused() {
    let turn = |key: &str, value: Value| {
        let mut answer = json!({"role": "assistant", "content": "a"});
        answer[key] = value;
        json!({"messages": [{"role": "user", "content": "q", "loss": false}, answer]})
    };
    let field = |key: &str, value: Value| {
        let mut line = turn("x", json!(1));
        line[key] = value;
        line
    };
    for shape in [Shape::Messages, Shape::Swift] {
        for (line, key) in [
            (turn("loss", json!(false)), "`loss`"),
            (turn("loss", json!(0.0)), "`loss`"),
            (turn("weight", json!(0)), "`weight`"),
            (turn("weight", json!(0.5)), "`weight`"),
            (turn("loss", json!("false")), "`loss`"),
            (
                turn("reasoning_content", json!(["t"])),
                "`reasoning_content`",
            ),
            (
                field("objects", json!({"ref": ["cat"], "bbox": [[1, 2, 3, 4]]})),
                "`objects`",
            ),
            (
                field("rejected_response", json!("b")),
                "`rejected_response`",
            ),
        ] {
            let reject = record(shape, STRIP, &line).unwrap_err();
            assert_eq!(reject.reason, Reason::WrongType, "{line}");
            assert!(reject.message.contains(key), "{}", reject.message);
        }
        for line in [
            turn("loss", json!(true)),
            turn("loss", Value::Null),
            turn("weight", json!(1)),
            field("objects", json!({"ref": [], "bbox": null})),
            field("rejected_response", json!("")),
            field("score", json!(0)),
        ] {
            let made = record(shape, STRIP, &line).unwrap();
            assert_eq!(made.messages[1].reasoning, None, "{line}");
        }
        let thought = record(shape, STRIP, &turn("reasoning_content", json!("t"))).unwrap();
        assert_eq!(thought.messages[1].reasoning.as_deref(), Some("t"));
    }
    let call =
        json!({"role": "tool_call", "content": "{\"name\": \"f\"}", "reasoning_content": "t"});
    assert_eq!(
        reason(Shape::Swift, &json!({"messages": [call]})),
        Reason::WrongType
    );
}
