//! Which requests of the suite are refused for what they write.

use kube::core::Status;

/// Whether the API server refuses what is written, and not the user who writes it.
///
/// Refit would be refused in the same way, so it is a fault of the provider's definition or of a webhook. A 400
/// or 422 is always about the object. A 403 has several authors, and the same reason for all, but not the same
/// message (`docs/facts/kubernetes.md#refused-writes`): an admission webhook's begins with its name, a
/// ValidatingAdmissionPolicy's has its name after `is forbidden:`, and there authorization has `User "x"
/// cannot`. Any other 403, such as an exceeded quota or a namespace that is being deleted, is not the provider's
/// either. Only the beginning counts: an admission webhook may return any text after it, with any code.
pub(super) fn refuses_object(status: &Status) -> bool {
    let message = status.message.as_str();
    let by_webhook = message.strip_prefix("admission webhook \"").is_some_and(|rest| {
        rest.split_once('"').is_some_and(|(_, rest)| rest.starts_with(" denied the request"))
    });
    let reason = message.split_once(" is forbidden: ").map_or("", |(_, reason)| reason);
    let by_policy = reason.starts_with("ValidatingAdmissionPolicy '");
    matches!(status.code, 400 | 422) || by_webhook || by_policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_user_is_no_refused_object() {
        let webhook = "admission webhook \"check.memory.example\" denied the request: ";
        let policy = "memoryupdates.memory.example \"u\" is forbidden: ValidatingAdmissionPolicy 'p' \
                      with binding 'b' denied request: no";
        let forbidden = "memoryupdates.memory.example \"u\" is forbidden: ";
        let user = "User \"me\" cannot patch resource \"memoryupdates\" in API group \
                    \"memory.example\" in the namespace \"default\"";
        let table = [
            (400, "invalid object".to_owned(), true),
            (422, "MemoryUpdate \"u\" is invalid: spec: Invalid value".to_owned(), true),
            (403, format!("{webhook}no"), true),
            (403, format!("{webhook}{forbidden}{user}"), true),
            (403, webhook.replace(": ", " without explanation"), true),
            (409, format!("{webhook}no"), true),
            (403, policy.to_owned(), true),
            (422, policy.to_owned(), true),
            (403, format!("{forbidden}{user}"), false),
            (403, format!("{forbidden}{user}: {webhook}no"), false),
            (403, format!("{forbidden}{}", user.replace("me", "x is forbidden: y")), false),
            (403, format!("{forbidden}exceeded quota: q, requested: count=1"), false),
            (403, String::new(), false),
            (401, "Unauthorized".to_owned(), false),
            (404, "not found".to_owned(), false),
            (409, "the object has been modified".to_owned(), false),
            (500, "failed calling webhook \"check.memory.example\": timeout".to_owned(), false),
        ];
        for (code, message, refuses) in table {
            let status = Status { code, message: message.clone(), ..Status::failure("", "") };
            assert_eq!(refuses_object(&status), refuses, "{code} {message}");
        }
    }
}
