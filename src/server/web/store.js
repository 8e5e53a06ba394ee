// What outlives a reload, in this tab only. Where storage is forbidden or full nothing is kept.

export function load(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(`mimo.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function save(name, value) {
  try {
    sessionStorage.setItem(`mimo.${name}`, JSON.stringify(value));
  } catch {
    // The conversation goes on without it.
  }
}
