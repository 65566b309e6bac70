-- State server: the changelog (changelog.py). `changelog`: a stream; an entry's id is the bytes up to the end of its checkpoint, and a
-- sequence number. The first has the field `head`, the others a field `group session` for each group; a group below 0 holds event times.
-- `logged`: the last id. `readers`: name -> `position until_ms`, below 0: the reader has to load again. `reading`: exists while there may
-- be readers; the owner watches it. A reader's instance may write these keys: no checkpoint may fail because of their content.
local CHANGELOG = {'changelog', 'logged', 'readers', 'reading'}
-- Values that are passed to one XADD: Lua's stack holds at most 8,000.
local FIELDS = 2000

local function forget_changelog(p)
  for _, kind in ipairs(CHANGELOG) do redis.call('UNLINK', p .. kind) end
end

-- Live readers: name -> {position, until_ms}. Those whose lease has ended are removed.
local function readers(p)
  local found, now, flat = {}, now_ms(), try('HGETALL', p .. 'readers') or {}
  for i = 1, #flat, 2 do
    local position, till = flat[i + 1]:match('^(-?%d+) (%d+)$')
    if not till or tonumber(till) < now then
      redis.call('HDEL', p .. 'readers', flat[i])
    else
      found[flat[i]] = {tonumber(position), till}
    end
  end
  return found
end

-- Keep the entries after the position of the reader that is furthest behind; everything expires with the last lease.
local function settle(p, found)
  local lowest
  for _, r in pairs(found) do
    if r[1] >= 0 and (not lowest or r[1] < lowest) then lowest = r[1] end
  end
  if next(found) == nil then return forget_changelog(p) end
  local last = redis.call('PTTL', p .. 'readers')
  if lowest then
    try('XTRIM', p .. 'changelog', 'MINID', string.format('%.0f', lowest + 1))
    redis.call('PEXPIRE', p .. 'changelog', last)
  else
    redis.call('UNLINK', p .. 'changelog')
  end
  redis.call('PEXPIRE', p .. 'logged', last)
  redis.call('PEXPIRE', p .. 'reading', last)
end

local function place(p, name, position, lease_ms)
  local entry = string.format('%.0f %.0f', position, now_ms() + lease_ms)
  if not try('HSET', p .. 'readers', name, entry) then
    redis.call('DEL', p .. 'readers')
    redis.call('HSET', p .. 'readers', name, entry)
  end
  redis.call('PEXPIRE', p .. 'readers', lease_ms)
end

-- ARGV: name, lease_ms. Returns the position after all entries.
local function join(keys, a)
  local p = keys[1]
  local at = tonumber(try('GET', p .. 'logged') or 0) or 0
  place(p, a[1], at, tonumber(a[2]))
  redis.call('SET', p .. 'reading', 1, 'NX')
  settle(p, readers(p))
  return at
end

-- ARGV: name, position, lease_ms. Returns 1, or why it is no longer a reader: 0, or the value stored in place of its position.
local function hold(keys, a)
  local p = keys[1]
  local reader = readers(p)[a[1]]
  if not reader then return 0 end
  if reader[1] < 0 then return reader[1] end
  place(p, a[1], tonumber(a[2]), tonumber(a[3]))
  settle(p, readers(p))
  return 1
end

-- ARGV: name.
local function leave(keys, a)
  local p = keys[1]
  local removed = try('HDEL', p .. 'readers', a[1])
  settle(p, readers(p))
  return removed or 0
end

-- Called within the owner's checkpoint. ARGV: bound, head, then for each group its field and its part.
local function append(keys, a)
  local p, live = keys[1], false
  local found, at = readers(p), tonumber(try('GET', p .. 'logged') or 0) or 0
  for i = 2, #a do at = at + #a[i] end
  for name, r in pairs(found) do
    if r[1] >= 0 and at - r[1] > tonumber(a[1]) then
      r[1] = -1
      redis.call('HSET', p .. 'readers', name, '-1 ' .. r[2])
    end
    live = live or r[1] >= 0
  end
  if live then
    redis.call('SET', p .. 'logged', string.format('%.0f', at))
    local added = try('XADD', p .. 'changelog', string.format('%.0f-0', at), 'head', a[2])
    for i = 3, #a, FIELDS do
      added = added and try('XADD', p .. 'changelog', string.format('%.0f-%d', at, i), unpack(a, i, math.min(i + FIELDS - 1, #a)))
    end
    if not added then forget_changelog(p) end
  end
  settle(p, readers(p))
  return 1
end

-- The entries after a position, for a reader of some groups: heads, the parts of these groups, and those that hold event times.
-- ARGV: position, groups.
local function entries(keys, a)
  local wanted, found = {}, {}
  for i = 2, #a do wanted[a[i]] = true end
  for _, entry in ipairs(redis.call('XRANGE', keys[1] .. 'changelog', '(' .. a[1] .. '-18446744073709551615', '+')) do
    local id, fields, left = entry[1], entry[2], {}
    for i = 1, #fields, 2 do
      local number = fields[i]:match('^%d+')
      if not number or wanted[number] then
        left[#left + 1] = fields[i]
        left[#left + 1] = fields[i + 1]
      end
    end
    if #left > 0 then found[#found + 1] = {id, left} end
  end
  return found
end

redis.register_function('udo_join', join)
redis.register_function('udo_entries', entries)
redis.register_function('udo_hold', hold)
redis.register_function('udo_leave', leave)
redis.register_function('udo_append', append)
