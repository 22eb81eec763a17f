//! Texts of the provider spec in any script: they are UTF-8, as JSON is.

use serde_json::Value;

use super::cases;
use super::list::tells_owners;
use super::update::{is_the_same, is_written, vm_spec};
use crate::answer::CaseResult;
use crate::config::changed_places;
use crate::{Case, Hook, MachineRequest, Need, Setting, TestContext};
use cmi_driver::{Code, Operation};

pub(super) const CASES: &[Case] = cases! {
    "create-any-script":
        "a tag with non-ASCII characters is INVALID_ARGUMENT and creates nothing, or the VM works"
        ["DRV-04", "DRV-10", "CMI-02", "CMI-30", "CMI-48", "CMI-82"], [] => any_script;
    "create-other-identity-any-script":
        "machine tags that differ only in non-ASCII characters are distinguished"
        ["CAP-01"], [] => other_identity;
    "list-tags-any-script": "a list with tags returns non-ASCII characters unchanged"
        ["CAP-04"], [Need::Call(Operation::ListMachines)] => listed_identity;
    "update-any-script":
        "an update to a text with non-ASCII characters is INVALID_ARGUMENT, or is applied unchanged"
        ["CAP-23"],
        [
            Need::Call(Operation::UpdateMachine),
            Need::Setting(Setting::HotUpdates),
            Need::Hook(Hook::VmSpec),
        ] => update;
};

/// A tag that is unknown to drivers.
const TAG: &str = "conformance.example.com/text";
/// Letters of two, three and four bytes in UTF-8; the last is two units in UTF-16.
const TEXT: &str = "Größe 東京 🚀";
/// A text that equals `TEXT` to a driver that keeps only ASCII, or replaces each other character by one sign.
const OTHER_TEXT: &str = "Grüße 大阪 🛰";

/// Returns whether the back end accepts the text in a tag. Fails if it refuses the create but makes a VM.
/// Back ends may accept fewer characters in a tag than JSON.
async fn taken(t: &TestContext, request: &MachineRequest) -> CaseResult<bool> {
    let codes = [Code::InvalidArgument, Code::Aborted, Code::Uninitialized];
    let answer = t.create(request).await?;
    let is_refused = answer.code() == Some(Code::InvalidArgument);
    answer.ok_or(&codes)?;
    t.settle().await;
    if is_refused {
        t.has_none(request).await?;
        t.warn(format!(
            "a tag with the text `{TEXT}` is refused: what the driver does with such texts was not seen"
        ));
    }
    Ok(!is_refused)
}

async fn any_script(t: TestContext) -> CaseResult {
    let request = t.machine_request("a").tagged(TAG, TEXT);
    if !taken(&t, &request).await? {
        return Ok(());
    }
    let id = t.make(&request).await?.provider_id;
    is_the_same(&t, &request, &id).await?;
    if t.supports(Operation::GetMachineStatus) {
        for known in [None, Some(&id)] {
            t.status(&request, known).await?.ok()?;
        }
    }
    t.has_only(&request, &id).await?;
    t.remove(&request, Some(&id)).await?;
    t.is_gone(&request).await
}

async fn listed_identity(t: TestContext) -> CaseResult {
    let request = t.machine_request("a").with_identity(TEXT);
    if !taken(&t, &request).await? {
        return Ok(());
    }
    let id = t.make(&request).await?.provider_id;
    tells_owners(&t, &request, &[(&request, &id)]).await.map(drop)
}

async fn other_identity(t: TestContext) -> CaseResult {
    let request = t.machine_request("a").with_identity(TEXT);
    if !taken(&t, &request).await? {
        return Ok(());
    }
    let id = t.make(&request).await?.provider_id;
    let other = request.clone().with_identity(OTHER_TEXT);
    t.create(&other).await?.refused(Code::AlreadyExists)?;
    t.has_only(&request, &id).await
}

/// Returns the change with `TEXT` in place of each of its texts.
fn in_any_script(change: &Value) -> Value {
    match change {
        Value::String(_) => TEXT.into(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(key, value)| (key.clone(), in_any_script(value)))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => change.clone(),
    }
}

async fn update(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    for change in t.config().hot_updates.clone() {
        let change = in_any_script(&change);
        let wanted = request.clone().changed(&change);
        let answer = t.update(&request, &wanted, &id).await?;
        // A text may have to be one of a set of values, such as the name of a size.
        if answer
            .ok_or(&[Code::InvalidArgument, Code::OutOfRange])?
            .is_none()
        {
            continue;
        }
        t.settle().await;
        let has = vm_spec(&t, &request).await?;
        let asked = Value::Object(wanted.class.provider_spec.0.clone());
        for place in changed_places(&change).iter().map(ToString::to_string) {
            if let Some(asked) = asked.pointer(&place).filter(|asked| asked.as_str() == Some(TEXT)) {
                is_written(&place, asked, &has)?;
            }
        }
        t.update(&wanted, &request, &id).await?.ok()?;
    }
    t.has_only(&request, &id).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_texts_of_a_change_are_in_another_script_and_nothing_else_is() {
        let change = json!({"tags": {"team": "a", "old": null}, "check": true, "size": 7});
        let changed = json!({"tags": {"team": TEXT, "old": null}, "check": true, "size": 7});
        assert_eq!(in_any_script(&change), changed);
    }

    #[test]
    fn the_two_texts_are_one_where_each_other_character_is_one_sign() {
        let ascii = |text: &str| text.replace(|c: char| !c.is_ascii(), "?");
        assert_ne!(TEXT, OTHER_TEXT);
        assert_eq!(ascii(TEXT), ascii(OTHER_TEXT));
    }
}
